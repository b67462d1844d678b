from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arachne.core.blocks import (
    allowed_degrees,
    blocks,
    ladders,
    laminar,
    laminar_families,
    plan_blocks,
)
from arachne.core.errors import ConfigError

worlds = st.integers(1, 64)


def test_degrees_are_powers_of_two_their_triples_and_the_world():
    assert allowed_degrees(7, 7) == (1, 2, 3, 4, 6, 7)
    assert allowed_degrees(7, 4) == (1, 2, 3, 4)
    assert allowed_degrees(12, 12) == (1, 2, 3, 4, 6, 8, 12)


def test_degrees_of_a_small_odd_world_may_divide_it():
    assert allowed_degrees(10, 10) == (1, 2, 3, 4, 5, 6, 8, 10)
    assert allowed_degrees(28, 14) == (1, 2, 3, 4, 6, 7, 8, 12, 14)
    assert allowed_degrees(20, 20, multiple_of=2) == (2, 4, 6, 8, 10, 12, 16, 20)
    assert 5 not in allowed_degrees(40, 40)


def test_groups_that_share_out_parameters_stay_whole():
    assert allowed_degrees(48, 48, multiple_of=8) == (8, 16, 24, 32, 48)
    assert allowed_degrees(48, 47, multiple_of=8) == (8, 16, 24, 32)
    assert allowed_degrees(40, 40, multiple_of=8) == (8, 16, 24, 32, 40)
    assert allowed_degrees(10, 10, multiple_of=5) == (5, 10)


@pytest.mark.parametrize(("num_gpus", "max_degree"), [(12, 12), (16, 4)])
def test_groups_that_do_not_fill_the_world_or_the_largest_degree_are_refused(num_gpus, max_degree):
    with pytest.raises(ConfigError, match=r"do not allow groups of 8 GPUs that share out"):
        allowed_degrees(num_gpus, max_degree, multiple_of=8)


def test_left_over_gpus_have_no_block():
    assert blocks(7, 3) == ((0, 1, 2), (3, 4, 5))
    assert blocks(2, 3) == ()


def test_ladders_of_six_gpus_hold_two_blocks_or_three_blocks():
    assert ladders(6, (1, 2, 3, 6)) == ((1, 2, 6), (1, 3, 6))


@given(num_gpus=st.integers(1, 40), data=st.data())
def test_ladders_are_the_chains_of_divisors_that_no_degree_can_be_added_to(
    num_gpus: int, data: st.DataObject
):
    some = data.draw(st.sets(st.integers(1, num_gpus), min_size=1, max_size=7))
    inner = sorted(some - {num_gpus})
    chains = [
        chain
        for length in range(1, len(inner) + 1)
        for chain in combinations(inner, length)
        if all(large % small == 0 for small, large in pairwise(chain))
    ]
    fullest = [c for c in chains if not any(set(c) < set(other) for other in chains)]
    top = (num_gpus,) if num_gpus in some else ()

    found = ladders(num_gpus, tuple(sorted(some)))

    assert set(found) == ({chain + top for chain in fullest} or {top})
    assert list(found) == sorted(found)


def test_ladders_of_a_thousand_gpus_are_few():
    assert len(ladders(1024, allowed_degrees(1024, 1024))) == 10


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


def test_three_gpus_may_share_four_or_eight_with_others():
    firsts = [block[0] for block in plan_blocks(16, (1, 2, 3))[3]]

    assert firsts == [0, 3, 4, 6, 8, 9, 11, 12]


def test_six_gpus_start_where_sixteen_hold_two_of_them_and_a_four():
    assert [block[0] for block in plan_blocks(32, (1, 2, 6))[6]] == [0, 6, 8, 12, 16, 18, 22, 24]


@given(worlds, worlds)
def test_plans_may_use_few_blocks_and_all_that_lie_side_by_side(num_gpus: int, limit: int):
    degrees = allowed_degrees(num_gpus, limit)

    found = plan_blocks(num_gpus, degrees)

    assert tuple(found) == degrees
    assert sum(map(len, found.values())) < 5 * num_gpus
    for degree, of_degree in found.items():
        assert set(blocks(num_gpus, degree)) <= set(of_degree)
        assert list(of_degree) == sorted(set(of_degree))
        assert all(block == tuple(range(block[0], block[0] + degree)) for block in of_degree)
        assert all(block[-1] < num_gpus for block in of_degree)
        assert max(sum(gpu in block for block in of_degree) for gpu in range(num_gpus)) <= 3


def test_blocks_side_by_side_are_there_whatever_the_smallest_degree():
    assert set(blocks(12, 3)) <= set(plan_blocks(12, (2, 3))[3])


def test_blocks_start_between_groups_that_share_out_parameters():
    degrees = allowed_degrees(24, 24, multiple_of=3)

    for of_degree in plan_blocks(24, degrees).values():
        assert all(block[0] % 3 == 0 for block in of_degree)


def test_small_odd_worlds_are_filled_from_both_ends():
    assert [block[0] for block in plan_blocks(7, (1, 2, 3))[2]] == [0, 1, 2, 3, 4, 5]
    assert (12, 13, 14, 15, 16, 17, 18, 19) in plan_blocks(20, (4, 8))[8]
    assert plan_blocks(8, (1, 2))[2] == blocks(8, 2)
    assert plan_blocks(63, (1, 2))[2] == blocks(63, 2)
    assert [block[0] for block in plan_blocks(15, (3, 6))[6]] == [0, 3, 6, 9]


@pytest.mark.parametrize("num_gpus", range(1, 9))
def test_laminar_families_are_all_that_no_block_can_be_added_to(num_gpus: int):
    degrees = allowed_degrees(num_gpus, num_gpus)
    by_degree = plan_blocks(num_gpus, degrees)
    every = {block for of_degree in by_degree.values() for block in of_degree}

    def cross(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
        shared = set(one) & set(other)
        return bool(shared) and shared not in (set(one), set(other))

    found = laminar_families(by_degree, 1000)

    assert len(found) == len({frozenset(family) for family in found})
    for family in found:
        kept = set(family)
        assert all({other for other in kept if cross(block, other)} == set() for block in kept)
        assert all(any(cross(block, other) for other in kept) for block in every - kept)
    crossing = sorted(block for block in every if any(cross(block, other) for other in every))
    rest = every - set(crossing)
    known = {frozenset(family) for family in found}
    for chosen in range(2 ** min(len(crossing), 12)):
        part = {block for index, block in enumerate(crossing) if chosen >> index & 1}
        is_laminar = not any(cross(one, other) for one in part for other in part)
        others = set(crossing) - part
        if is_laminar and all(any(cross(block, one) for one in part) for block in others):
            assert frozenset(part | rest) in known
    assert laminar_families(by_degree, len(found)) == found
    assert laminar_families(by_degree, len(found) - 1) == ()


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(1, 16)), max_size=30))
def test_a_laminar_family_keeps_each_block_that_crosses_no_earlier_one(
    spans: list[tuple[int, int]],
):
    candidates = [tuple(range(first, min(first + size, 16))) for first, size in spans]

    kept: list[tuple[int, ...]] = []
    for block in candidates:
        sets = [set(other) for other in kept]
        nests = all(set(block) <= o or o <= set(block) or not o & set(block) for o in sets)
        if nests and block not in kept:
            kept.append(block)

    assert laminar(16, candidates) == tuple(kept)
