"""Configurations: what one GPU does in a given time, and the fewest GPUs that do all work.

A stack of k clips on p GPUs takes a part of each one's time and trains k / p of a clip on each. A
*configuration* is a list of stacks that fit into the time one after another. If p GPUs of a block
have the same one, their stacks are whole again: a stack on d of them is there p / d times. So the
fewest GPUs that do all work are the least sum of amounts x of configurations c with

    Σ over c of x[c] · clips of shape s in c  ≥  clips of shape s,   for every s.

The programme has a column for every configuration, and these are found as they are needed: the
best for the present prices of clips is the answer of a knapsack (Gilmore and Gomory, 1961). All
arithmetic is in an order that does not depend on the machine.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum, inf
from operator import mul

import numpy as np

_WORTH_ENTERING = 1.0 + 1e-6
_SMALL = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Clips of one shape on one block, as one of its GPUs sees them.

    Attributes:
        ticks: Of the GPU's time, at least one.
        shape: Index of the shape.
        num_clips: Clips in the stack.
        degree: GPUs of the block.
    """

    ticks: int
    shape: int
    num_clips: int
    degree: int

    @property
    def share(self) -> float:
        """Clips for each GPU."""
        return self.num_clips / self.degree


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Stacks that one GPU runs one after another."""

    stacks: tuple[Stack, ...]

    @property
    def degree(self) -> int:
        """GPUs that have to do the same, so that every stack is whole."""
        return max(stack.degree for stack in self.stacks)

    def clips(self, num_shapes: int) -> list[float]:
        """Clips of each shape that one GPU trains."""
        clips = [0.0] * num_shapes
        for stack in self.stacks:
            clips[stack.shape] += stack.share
        return clips


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """The fewest GPUs that do all work.

    Attributes:
        amounts: GPUs for each configuration; fractions.
        proved_gpus: Fewer GPUs than these, in all, cannot do it.
    """

    amounts: tuple[tuple[float, Configuration], ...]
    proved_gpus: float

    @property
    def num_gpus(self) -> float:
        """GPUs that these amounts take."""
        return fsum(amount for amount, _ in self.amounts)


class Knapsack:
    """The stacks that may be combined, and what is the best of them to fill a GPU's time with."""

    def __init__(self, stacks: Iterable[Stack], num_ticks: int) -> None:
        self._stacks = sorted(stacks, key=lambda s: (s.ticks, s.shape, s.degree, s.num_clips))
        self._ticks = np.array([stack.ticks for stack in self._stacks], dtype=np.int64)
        self._shapes = np.array([stack.shape for stack in self._stacks], dtype=np.int64)
        self._shares = np.array([stack.share for stack in self._stacks])
        self._num_ticks = num_ticks
        up_to = np.searchsorted(self._ticks, np.arange(num_ticks + 1), side="right")
        self._num_fitting: list[int] = up_to.tolist()

    def alone(self, shape: int) -> Configuration | None:
        """One stack of a shape as often as it fits, the one that trains most clips so."""
        best: Configuration | None = None
        most = 0.0
        for stack in self._stacks:
            times = self._num_ticks // stack.ticks
            if stack.shape == shape and times * stack.share > most:
                most = times * stack.share
                best = Configuration(stacks=(stack,) * times)
        return best

    def best(self, prices: Sequence[float]) -> tuple[float, Configuration]:
        """The most that a GPU's time is worth if clips have these prices, and how."""
        worths = np.array(prices)[self._shapes] * self._shares
        num_ticks = self._num_ticks
        most = np.zeros(num_ticks + 1)
        last = [-1] * (num_ticks + 1)
        best = 0.0
        for tick in range(1, num_ticks + 1):
            num_fitting = self._num_fitting[tick]
            if num_fitting:
                values = most[tick - self._ticks[:num_fitting]]
                values += worths[:num_fitting]
                index = int(values.argmax())
                if values[index] > best:
                    best, last[tick] = float(values[index]), index
            most[tick] = best
        chosen: list[Stack] = []
        tick = num_ticks
        while tick > 0:
            if last[tick] < 0:
                tick -= 1
            else:
                chosen.append(self._stacks[last[tick]])
                tick -= chosen[-1].ticks
        return best, Configuration(stacks=tuple(chosen))


def cover(
    counts: Sequence[float],
    knapsacks: Sequence[Knapsack],
    most_pivots: int,
    known: Sequence[Configuration] = (),
) -> Cover | None:
    """Amounts of configurations, each out of one knapsack, that hold `counts` clips of each shape.

    Cut short after `most_pivots`, they may not be the fewest. `known` configurations, which have to
    fit, save some knapsacks. None if a shape is in no stack.
    """
    num_shapes = len(counts)
    basis = _Basis()
    for shape, count in enumerate(counts):
        alone = [found for knapsack in knapsacks if (found := knapsack.alone(shape)) is not None]
        if not alone:
            return None
        best = max(alone, key=lambda one: one.clips(num_shapes)[shape])
        basis.begin(best, shape, num_shapes, count)
    columns = [(configuration, configuration.clips(num_shapes)) for configuration in known]
    proved_gpus = 0.0
    for _ in range(most_pivots):
        exact_prices = basis.prices()
        worths = [fsum(map(mul, clips, exact_prices)) for _, clips in columns]
        dearest = max(range(len(columns)), key=worths.__getitem__, default=-1)
        if columns and worths[dearest] > _WORTH_ENTERING:
            basis.enter(*columns[dearest])
            continue
        prices = [max(price, 0.0) for price in exact_prices]
        most, configuration = _best(knapsacks, prices)
        worth = fsum([count * price for count, price in zip(counts, prices, strict=True)])
        proved_gpus = max(proved_gpus, worth / max(most, _SMALL))
        if most <= _WORTH_ENTERING:
            break
        basis.enter(configuration, configuration.clips(num_shapes))
    return Cover(amounts=tuple(basis.amounts()), proved_gpus=proved_gpus)


def _best(knapsacks: Sequence[Knapsack], prices: Sequence[float]) -> tuple[float, Configuration]:
    return max([knapsack.best(prices) for knapsack in knapsacks], key=lambda found: found[0])


class _Basis:
    """The revised simplex method for a handful of rows; its inverse is kept whole.

    Each configuration costs one GPU. No column is needed for clips held beyond a count: a shape
    whose price is below nothing is left out by the knapsack, and such a configuration enters.
    """

    def __init__(self) -> None:
        self._members: list[Configuration] = []
        self._inverse: list[list[float]] = []
        self._values: list[float] = []

    def begin(
        self, configuration: Configuration, shape: int, num_shapes: int, count: float
    ) -> None:
        """One shape after another, each with a configuration of its own."""
        clips = configuration.clips(num_shapes)[shape]
        self._members.append(configuration)
        self._inverse.append([1.0 / clips if s == shape else 0.0 for s in range(num_shapes)])
        self._values.append(count / clips)

    def prices(self) -> list[float]:
        """GPUs that one more clip of each shape would cost."""
        return [fsum(column) for column in zip(*self._inverse, strict=True)]

    def amounts(self) -> list[tuple[float, Configuration]]:
        """GPUs for each configuration."""
        return [
            (value, member)
            for value, member in zip(self._values, self._members, strict=True)
            if value > _SMALL
        ]

    def enter(self, member: Configuration, clips: Sequence[float]) -> None:
        """Take a member in for the one that is used up first; ties to the first row."""
        held = [(shape, amount) for shape, amount in enumerate(clips) if amount]
        direction = [fsum([row[shape] * amount for shape, amount in held]) for row in self._inverse]
        leaving, step = -1, inf
        for row, change in enumerate(direction):
            if change > _SMALL and self._values[row] / change < step - 1e-12:
                leaving, step = row, self._values[row] / change
        if leaving < 0:
            return  # by rounding only: a covering programme is never unbounded
        pivot = [entry / direction[leaving] for entry in self._inverse[leaving]]
        for row, change in enumerate(direction):
            if row != leaving and change:
                self._inverse[row] = [
                    entry - change * other
                    for entry, other in zip(self._inverse[row], pivot, strict=True)
                ]
                self._values[row] = max(0.0, self._values[row] - step * change)
        self._inverse[leaving] = pivot
        self._members[leaving] = member
        self._values[leaving] = step
