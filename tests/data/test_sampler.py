import subprocess
import sys
from collections import Counter
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arachne.core.errors import DataError
from arachne.data.sampler import ClipStream, Group, epoch_order, step_draws

ITEMS = st.integers(1, 60)
SEEDS = st.integers(0, 2**63)
REPEATS = st.fractions(Fraction(1, 10), 3, max_denominator=10)
GOLDEN = [3, 1, 6, 2, 5, 4, 0, 7]


def plain(num_items: int) -> ClipStream:
    return ClipStream([Group(num_items=num_items)])


@st.composite
def streams(draw) -> ClipStream:
    """Several datasets, each with repeats of its own, and clips of very different sizes."""
    numbers = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    groups = [Group(num_items=number, repeats=draw(REPEATS)) for number in numbers]
    sizes = st.lists(st.integers(1, 40), min_size=sum(numbers), max_size=sum(numbers))
    return ClipStream(groups, draw(sizes))


def items_of(stream: ClipStream, seed: int, step: int, step_size: int) -> list[int]:
    return [draw.item for draw in step_draws(stream, seed, step, step_size)]


def drawn(stream: ClipStream, seed: int, num_epochs: int, step_size: int) -> list[int]:
    """The items of the first epochs, gathered step by step."""
    end = stream.start_of(seed, num_epochs)
    draws = [d for k in range(-(-end // step_size)) for d in step_draws(stream, seed, k, step_size)]
    return [draw.item for draw in draws if draw.epoch < num_epochs]


@given(seed=SEEDS, num_items=ITEMS, batch_size=st.integers(1, 70), num_epochs=st.integers(1, 4))
def test_every_epoch_covers_each_clip_exactly_once(seed, num_items, batch_size, num_epochs):
    stream = drawn(plain(num_items), seed, num_epochs, batch_size)
    for epoch in range(num_epochs):
        counted = Counter(stream[epoch * num_items : (epoch + 1) * num_items])
        assert counted == dict.fromkeys(range(num_items), 1)


@given(stream=streams(), seed=SEEDS, num_epochs=st.integers(1, 12))
def test_no_two_draws_are_the_same_turn_of_an_item_in_an_epoch(stream, seed, num_epochs):
    end = stream.start_of(seed, num_epochs)
    draws = step_draws(stream, seed, 0, end) if end else ()
    turns = Counter((draw.epoch, draw.item) for draw in draws)
    found = {(draw.epoch, draw.item, draw.turn) for draw in draws}
    assert found == {(*key, turn) for key, number in turns.items() for turn in range(number)}


@given(stream=streams(), seed=SEEDS, more=st.integers(0, 100), num_epochs=st.integers(1, 21))
def test_steps_by_size_drop_no_clip_and_each_comes_up_as_often_as_its_repeats_say(
    stream, seed, more, num_epochs
):
    counted = Counter(drawn(stream, seed, num_epochs, int(stream.sizes.max()) + more))
    first = 0
    for group in stream.groups:
        exact = num_epochs * group.repeats
        for item in range(first, first + group.num_items):
            assert abs(counted[item] - exact) < 1  # the surplus is dealt fairly, too
        total = sum(counted[item] for item in range(first, first + group.num_items))
        assert abs(total - exact * group.num_items) < 1
        first += group.num_items


@given(stream=streams(), seed=SEEDS, more=st.integers(0, 100), step=st.integers(0, 300))
def test_no_step_is_empty_or_off_by_more_than_a_clip(stream, seed, more, step):
    largest = int(stream.sizes.max())
    items = items_of(stream, seed, step, largest + more)
    assert items
    assert abs(int(stream.sizes[items].sum()) - (largest + more)) < largest


@given(stream=streams(), seed=SEEDS, step=st.integers(0, 10**6), more=st.integers(0, 100))
def test_a_step_is_the_same_whenever_it_is_asked_for(stream, seed, step, more):
    size = int(stream.sizes.max()) + more
    first = step_draws(stream, seed, step, size)
    again = ClipStream(stream.groups, stream.sizes.tolist())
    assert first == step_draws(again, seed, step, size)


@given(stream=streams(), seed=SEEDS, step=st.integers(0, 50))
def test_a_larger_step_is_the_same_stream_cut_otherwise(stream, seed, step):
    size = int(stream.sizes.max())
    halves = [items_of(stream, seed, 2 * step + k, size) for k in range(2)]
    assert halves[0] + halves[1] == items_of(stream, seed, step, 2 * size)


@given(seed=SEEDS, repeats=st.integers(1, 4), num_items=ITEMS)
def test_turns_number_the_times_that_a_clip_comes_up_in_an_epoch(seed, repeats, num_items):
    stream = ClipStream([Group(num_items=num_items, repeats=Fraction(repeats))])
    draws = step_draws(stream, seed, 1, repeats * num_items)
    assert {draw.epoch for draw in draws} == {1}
    turns = {(draw.item, draw.turn) for draw in draws}
    assert turns == set(product(range(num_items), range(repeats)))


def test_seeds_and_epochs_have_orders_of_their_own():
    orders = {tuple(epoch_order(seed, epoch, 30)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_the_order_is_the_same_in_every_process_and_version():
    assert epoch_order(7, 1, 8).tolist() == GOLDEN
    code = "from arachne.data.sampler import epoch_order; print(epoch_order(7, 1, 8).tolist())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(GOLDEN)


def test_one_clip_and_fewer_clips_than_a_batch_train():
    assert items_of(plain(1), 0, 5, 3) == [0, 0, 0]
    assert Counter(items_of(plain(3), 0, 0, 6)) == {0: 2, 1: 2, 2: 2}


def test_an_epoch_may_hold_no_clip_at_all():
    # One clip that comes up every tenth epoch still fills every step.
    stream = ClipStream([Group(num_items=1, repeats=Fraction(1, 10))])
    draws = step_draws(stream, 0, 3, 2)
    assert [draw.epoch for draw in draws] == [69, 79]


def test_no_clip_at_all_is_refused():
    with pytest.raises(DataError, match="no clip is usable"):
        step_draws(plain(0), 0, 0, 2)


def test_a_surplus_goes_round_so_that_every_clip_has_its_share():
    stream = ClipStream([Group(num_items=5, repeats=Fraction(3, 2))], [3, 1, 4, 1, 5])
    assert stream.start_of(7, 4) == 4 * Fraction(3, 2) * 14
    assert Counter(drawn(stream, 7, 4, 5)) == dict.fromkeys(range(5), 6)
    assert [stream.start_of(7, epoch) for epoch in (0, 2)] == [0, 42]
    odd = stream.start_of(7, 1) - 14  # two of the five came up once more
    assert odd == sum(stream.sizes[[d.item for d in step_draws(stream, 7, 0, 84) if d.turn][:2]])
