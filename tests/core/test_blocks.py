from hypothesis import given
from hypothesis import strategies as st

from arachne.core.blocks import allowed_degrees, blocks, ladders

worlds = st.integers(1, 64)


def test_degrees_are_powers_of_two_their_triples_and_the_world():
    assert allowed_degrees(7, 7) == (1, 2, 3, 4, 6, 7)
    assert allowed_degrees(7, 4) == (1, 2, 3, 4)
    assert allowed_degrees(12, 12) == (1, 2, 3, 4, 6, 8, 12)


def test_left_over_gpus_have_no_block():
    assert blocks(7, 3) == ((0, 1, 2), (3, 4, 5))
    assert blocks(2, 3) == ()


def test_ladders_of_six_gpus_hold_two_blocks_or_three_blocks():
    assert ladders(6, (1, 2, 3, 6)) == ((1, 2, 6), (1, 3, 6))


def test_a_world_that_is_the_only_degree_is_a_ladder():
    assert ladders(5, (5,)) == ((5,),)


@given(worlds, worlds)
def test_blocks_of_a_ladder_are_nested_or_disjoint(num_gpus: int, max_degree: int):
    for ladder in ladders(num_gpus, allowed_degrees(num_gpus, max_degree)):
        all_blocks = [set(block) for degree in ladder for block in blocks(num_gpus, degree)]
        for one in all_blocks:
            for other in all_blocks:
                assert one <= other or other <= one or not one & other


@given(worlds, worlds)
def test_every_degree_is_on_some_ladder_and_every_gpu_in_some_block(num_gpus: int, limit: int):
    degrees = allowed_degrees(num_gpus, limit)
    found = ladders(num_gpus, degrees)

    assert {degree for ladder in found for degree in ladder} == set(degrees)
    assert len(blocks(num_gpus, 1)) == num_gpus
