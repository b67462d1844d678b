"""Which clips a step trains: a function of (seed, step) alone.

The epochs, each in an order of its own, are one endless stream of items. Every item takes up some
room in it, its *size*: 1 where a step is so many clips, its tokens or FLOPs where a step is so many
of these. With sizes laid end to end, step k trains the items that begin within

    [k · step_size, (k + 1) · step_size)

So no item is dropped, no number has to divide another, steps are `step_size` large in the mean, and
any step is found without those before it. Where no item is larger than a step, no step is empty.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import floor

import numpy as np
from numpy.typing import NDArray

from arachne.core.errors import DataError

Ints = NDArray[np.int64]

_EPOCH, _WORDS, _FIRST_GROUP = 0, 1, 2
"""What random words are for: an epoch's order, its draws' own, the surplus of the first group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Neighbouring items that come up equally often.

    Attributes:
        num_items: How many.
        repeats: How often each comes up in an epoch. Of 2.5 each comes up twice in every epoch,
            and in one of two epochs once more: the surplus goes through the group in orders of its
            own, so that every item gets its share. In an epoch in which one order ends and the next
            begins, an item may come up once more in both.
    """

    num_items: int
    repeats: Fraction = Fraction(1)

    @property
    def whole(self) -> int:
        """How often each item comes up in every epoch."""
        return floor(self.repeats)

    def num_extras(self, epoch: int) -> int:
        """Items that came up once more, in all epochs before this one together."""
        return floor(epoch * (self.repeats - self.whole) * self.num_items)


class ClipStream:
    """The items of a dataset as an endless stream; equal only to itself.

    Args:
        groups: Of all items, in their order.
        sizes: Of each item, at least 1; None if each is 1.
    """

    def __init__(self, groups: Sequence[Group], sizes: Sequence[int] | None = None) -> None:
        self.groups = tuple(groups)
        self.num_items = sum(group.num_items for group in groups)
        self.sizes: Ints = (
            np.ones(self.num_items, dtype=np.int64)
            if sizes is None
            else np.array(sizes, dtype=np.int64)
        )
        assert len(self.sizes) == self.num_items, (len(self.sizes), self.num_items)
        assert (self.sizes >= 1).all()
        ends = np.cumsum([group.num_items for group in groups])[:-1]
        parts = np.split(self.sizes, ends)
        self._totals = [(g, int(p.sum())) for g, p in zip(self.groups, parts, strict=True)]

    @property
    def epoch_size(self) -> Fraction:
        """Sum of the sizes of an epoch's items, in the mean over epochs."""
        return sum((group.repeats * total for group, total in self._totals), start=Fraction(0))

    @property
    def items_per_epoch(self) -> Fraction:
        """Items of an epoch, in the mean over epochs."""
        return sum((g.repeats * g.num_items for g in self.groups), start=Fraction(0))

    def start_of(self, seed: int, epoch: int) -> int:
        """Sum of the sizes of all items before an epoch."""
        start = 0
        first = 0
        for index, (group, total) in enumerate(self._totals):
            start += epoch * group.whole * total
            cycles, rest = divmod(group.num_extras(epoch), max(1, group.num_items))
            start += cycles * total
            if rest:
                order = _extra_order(seed, index, cycles, group.num_items)
                start += int(self.sizes[first + order[:rest]].sum())
            first += group.num_items
        return start

    def epoch_at(self, seed: int, place: int) -> int:
        """The epoch whose items lie at a place of the stream."""
        # An epoch begins where the mean says it does, give or take each group's own items.
        mean, slack = self.epoch_size, sum(total for _, total in self._totals)
        lowest = max(0, floor((place - slack) / mean) - 1)
        highest = floor((place + slack) / mean) + 2
        found = bisect_right(
            range(lowest, highest), place, key=lambda epoch: self.start_of(seed, epoch)
        )
        return lowest + found - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One item of a step.

    Attributes:
        item: Which one.
        epoch: In which it comes up.
        turn: Which time within that, counted from 0.
        word: 64 random bits, of (seed, epoch, item, turn) alone.
    """

    item: int
    epoch: int
    turn: int
    word: int = 0


def step_draws(stream: ClipStream, seed: int, step: int, step_size: int) -> tuple[Draw, ...]:
    """The items of one step's global batch; an item may come up several times in a large one.

    Raises:
        DataError: There are no items.
    """
    if not stream.epoch_size:
        raise DataError("no clip is usable; `arachne inspect` lists why each was rejected")
    assert step >= 0, step
    assert step_size >= 1, step_size
    begin, end = step * step_size, (step + 1) * step_size
    epoch = stream.epoch_at(seed, begin)
    draws: list[Draw] = []
    while (start := stream.start_of(seed, epoch)) < end:
        items, turns, words, places = _epoch(stream, seed, epoch)
        low, high = np.searchsorted(places, (max(0, begin - start), end - start))
        chosen = (column[low:high].tolist() for column in (items, turns, words))
        for item, turn, word in zip(*chosen, strict=True):
            draws.append(Draw(item=item, epoch=epoch, turn=turn, word=word))
        epoch += 1
    return tuple(draws)


@lru_cache(maxsize=4)
def _epoch(
    stream: ClipStream, seed: int, epoch: int
) -> tuple[Ints, Ints, NDArray[np.uint64], Ints]:
    """An epoch's items in order, which time each of them comes up, random bits, and where it begins
    within the epoch.
    """
    listed, turns = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    first = 0
    for index, group in enumerate(stream.groups):
        members = np.arange(first, first + group.num_items, dtype=np.int64)
        for turn in range(group.whole):
            listed.append(members)
            turns.append(np.full(len(members), turn, dtype=np.int64))
        extras = np.arange(group.num_extras(epoch), group.num_extras(epoch + 1), dtype=np.int64)
        taken = np.empty(0, dtype=np.int64)
        for cycle in np.unique(extras // max(1, group.num_items)):
            order = _extra_order(seed, index, int(cycle), group.num_items)
            chosen = members[order[extras[extras // group.num_items == cycle] % group.num_items]]
            # Where one order ends and the next begins, both may hold an item.
            before = np.isin(chosen, taken)
            listed.append(chosen)
            turns.append(group.whole + before.astype(np.int64))
            taken = chosen
        first += group.num_items
    every, turn = np.concatenate(listed), np.concatenate(turns)
    order = epoch_order(seed, epoch, len(every))
    sizes = stream.sizes[every[order]]
    words = _words(seed, epoch, _WORDS, len(every))
    return every[order], turn[order], words[order], np.cumsum(sizes) - sizes


def epoch_order(seed: int, epoch: int, num_items: int) -> Ints:
    """The order [num_items] of one epoch, read-only: every item exactly once."""
    return _order(seed, epoch, _EPOCH, num_items)


def _extra_order(seed: int, group: int, cycle: int, num_items: int) -> Ints:
    """The order in which the surplus goes through a group for the `cycle`th time."""
    return _order(seed, cycle, _FIRST_GROUP + group, num_items)


@lru_cache(maxsize=16)
def _order(seed: int, number: int, purpose: int, num_items: int) -> Ints:
    """A permutation, read-only.

    Sorts raw Philox words instead of calling `Generator.permutation`, because numpy keeps the
    words the same for ever and the permutation only until its next version.
    """
    words = _words(seed, number, purpose, num_items)
    order = np.argsort(words, kind="stable").astype(np.int64)
    order.flags.writeable = False
    return order


def _words(seed: int, number: int, purpose: int, count: int) -> NDArray[np.uint64]:
    """Random words [count], of the other three arguments alone."""
    key = np.array([seed, number], dtype=np.uint64)
    counter = np.array([0, 0, 0, purpose], dtype=np.uint64)
    return np.random.Philox(key=key, counter=counter).random_raw(count)
