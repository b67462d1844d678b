"""The knapsack is the best there is, and the programme of configurations is solved."""

from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arachne.planner.configurations import Configuration, Knapsack, Stack, cover

NUM_SHAPES = 3

stacks = st.lists(
    st.builds(
        Stack,
        ticks=st.integers(2, 12),
        shape=st.integers(0, NUM_SHAPES - 1),
        num_clips=st.integers(1, 3),
        degree=st.sampled_from([1, 2, 4]),
    ),
    min_size=1,
    max_size=5,
)
prices = st.lists(st.floats(0.0, 5.0), min_size=NUM_SHAPES, max_size=NUM_SHAPES)


def configurations(of: list[Stack], num_ticks: int) -> Iterator[tuple[Stack, ...]]:
    """All that fit, by trying."""
    yield ()
    for index, stack in enumerate(of):
        if stack.ticks <= num_ticks:
            for rest in configurations(of[index:], num_ticks - stack.ticks):
                yield (stack, *rest)


@given(of=stacks, prices=prices, num_ticks=st.integers(1, 24))
@settings(max_examples=150, deadline=None)
def test_no_configuration_is_worth_more(of: list[Stack], prices: list[float], num_ticks: int):
    most, best = Knapsack(of, num_ticks).best(prices)

    worths = [
        sum(stack.share * prices[stack.shape] for stack in one)
        for one in configurations(of, num_ticks)
    ]
    assert most == pytest.approx(max(worths))
    assert sum(stack.ticks for stack in best.stacks) <= num_ticks
    of_best = best.clips(NUM_SHAPES)
    assert sum(map(lambda n, p: n * p, of_best, prices)) == pytest.approx(most)


@given(of=stacks, counts=st.lists(st.integers(1, 40), min_size=NUM_SHAPES, max_size=NUM_SHAPES))
@settings(max_examples=80, deadline=None)
def test_the_fewest_gpus_are_those_of_linear_programming(of: list[Stack], counts: list[int]):
    linprog: Any = pytest.importorskip("scipy.optimize").linprog
    num_ticks = 14
    wanted = [float(count) for count in counts]
    found = cover(wanted, [Knapsack(of, num_ticks)], most_pivots=200)
    if {stack.shape for stack in of} != set(range(NUM_SHAPES)):
        assert found is None
        return

    assert found is not None
    held = np.array(
        [[sum(s.share for s in one if s.shape == shape) for shape in range(NUM_SHAPES)]
         for one in configurations(of, num_ticks)]
    )  # fmt: skip
    least = linprog(np.ones(len(held)), A_ub=-held.T, b_ub=-np.array(wanted)).fun
    assert found.num_gpus == pytest.approx(least, rel=1e-4)
    assert found.proved_gpus == pytest.approx(least, rel=1e-4)
    assert found.proved_gpus <= least * (1 + 1e-9)
    for shape in range(NUM_SHAPES):
        trained = sum(a * one.clips(NUM_SHAPES)[shape] for a, one in found.amounts)
        assert trained >= counts[shape] * (1 - 1e-6)


def test_known_configurations_change_no_amount_of_gpus():
    rng = Random(1)
    of = [
        Stack(ticks=rng.randint(3, 30), shape=shape, num_clips=size, degree=degree)
        for shape in range(NUM_SHAPES)
        for size in (1, 2)
        for degree in (1, 2)
    ]
    knapsack = Knapsack(of, 50)
    alone = cover([30.0, 20.0, 10.0], [knapsack], 100)
    assert alone is not None
    known = [configuration for _, configuration in alone.amounts]

    again = cover([30.0, 20.0, 10.0], [knapsack], 100, known)

    assert again is not None
    assert again.num_gpus == pytest.approx(alone.num_gpus, rel=1e-6)


@pytest.mark.parametrize("is_turned", [False, True])
def test_parts_of_the_gpus_take_from_different_knapsacks(is_turned: bool):
    # Two stacks on two GPUs each fill four; on three others stacks of 6 and of 4 ticks go together.
    alone = Knapsack([Stack(ticks=10, shape=0, num_clips=1, degree=2)], 10)
    beside = Knapsack(
        [
            Stack(ticks=6, shape=1, num_clips=1, degree=1),
            Stack(ticks=4, shape=2, num_clips=1, degree=1),
        ],
        10,
    )

    found = cover([2.0, 3.0, 3.0], [beside, alone] if is_turned else [alone, beside], 20)

    assert found is not None
    assert sorted((round(amount, 6), one.degree) for amount, one in found.amounts) == [
        (3.0, 1),
        (4.0, 2),
    ]


def test_a_configuration_needs_the_gpus_of_its_largest_stack():
    small = Stack(ticks=1, shape=0, num_clips=1, degree=1)
    large = Stack(ticks=1, shape=1, num_clips=3, degree=4)

    assert Configuration(stacks=(small, large)).degree == 4
    assert Configuration(stacks=(small, large, small)).clips(2) == [2.0, 0.75]
