"""Local search on whole plans with encoders: the order of launches, their GPUs, and their stacks.

A plan is a list of launches in order, and as long as `planner/schedule.py` makes it, waits and
handoffs included. A step changes something in it, most often on the *critical chain*: the launches
of which each starts when the one before it ends, the last of them ending last. Anything may move:
to other blocks, also such as no tree holds together; before or behind others; to other clips of
its shape. Setbacks are accepted early on (threshold accepting, Dueck and Scheuer, 1990), and the
best plan seen is kept. A step takes time in proportion to the launches: this is for steps of few
of them, where loads say little about waits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from typing import TypeVar

from arachne.core.cascade import Cascade
from arachne.planner.problem import Placement
from arachne.planner.variants import Gpus, Variants

_FIRST_SETBACK = 0.3
_FIRST_SETBACK_OF_LAUNCHES = 4.0
"""Relative setback accepted at the first step: the first, or the second over the number of
launches, whichever is less; it falls linearly to none."""

_ON_CHAIN = 0.7
"""Part of the steps that change the critical chain."""

_ONE_MORE = 0.4
"""How often a step that has changed something changes something else too."""

_TO_OTHERS_AND_MOVED, _TO_OTHERS, _MOVED, _SWAPPED = 0.25, 0.55, 0.75, 0.88
"""Up to which number between 0 and 1 a change is of each kind; above them a launch is restacked."""

_WITH_ANOTHER = 0.7
"""How often clips are dealt anew with another launch of the shape, if there is one."""

_BLOCKS_OF_A_TRY = 8
"""Blocks of a degree for each one more that is looked at."""

T = TypeVar("T")

_Key = tuple[str, int]
"""What an encoder of this step makes: its module, and the clip's slot."""


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """A cascade with what the search asks of it again and again.

    Attributes:
        cascade: The work.
        shape: Index of its shape.
        seconds: On each block that can run it.
        degrees: These blocks by degree.
        needs: What has to be made before it.
        makes: What it makes for this step.
    """

    cascade: Cascade
    shape: int
    seconds: dict[Gpus, float]
    degrees: list[list[Gpus]]
    needs: tuple[_Key, ...]
    makes: tuple[_Key, ...]


_Placed = tuple[_Job, Gpus]


@dataclass(frozen=True, slots=True)
class _Timed:
    """Launches in order, when each ends, and the index of the one that it waited for (−1: none);
    and when each GPU is through with all.
    """

    placed: list[_Placed]
    ends_s: list[float]
    causes: list[int]
    free_s: list[float]
    makespan_s: float

    def critical_chain(self) -> list[int]:
        """From the launch that ends last back to one that starts at once."""
        index = self.ends_s.index(self.makespan_s)
        chain: list[int] = []
        while index >= 0:
            chain.append(index)
            index = self.causes[index]
        return chain


class OrderSearch:
    """Steps on plans of one problem."""

    def __init__(self, variants: Variants, rng: Random) -> None:
        problem = variants.problem
        self._variants = variants
        self._rng = rng
        self._num_gpus = problem.num_gpus
        self._clips = problem.batch.clips
        self._blocks = list(problem.allowed_blocks.values())
        self._known: dict[tuple[int, int], tuple[dict[Gpus, float], list[list[Gpus]]]] = {}
        self._handoff_s: dict[tuple[int, int, Gpus, Gpus], float] = {}

    def improved(
        self, placements: Sequence[Placement], bound_s: float, num_steps: int
    ) -> tuple[list[Placement], float]:
        """The best order of launches found in so many steps, and its makespan."""
        start = self._timed([(self._job(cascade), gpus) for cascade, gpus in placements], inf)
        assert start is not None, "encoders come before what needs them"
        best = self._filling_ends(self._searched(start, bound_s, num_steps))
        return [(job.cascade, gpus) for job, gpus in best.placed], best.makespan_s

    def _searched(self, start: _Timed, bound_s: float, num_steps: int) -> _Timed:
        rng = self._rng
        current = best = start
        if not start.placed:
            return start
        chain = current.critical_chain()
        first_setback = min(_FIRST_SETBACK, _FIRST_SETBACK_OF_LAUNCHES / len(start.placed))
        for step in range(num_steps):
            if best.makespan_s <= bound_s * (1.0 + 1e-7):
                break
            is_on_chain = rng.random() < _ON_CHAIN
            index = self._one_of(chain) if is_on_chain else self._some_index(current.placed)
            changed = self._changed(current.placed, index, current.free_s)
            while rng.random() < _ONE_MORE:
                changed = self._changed(changed, self._some_index(changed), current.free_s)
            setback = first_setback * (1.0 - step / num_steps) * rng.random()
            limit_s = max(current.makespan_s, best.makespan_s * (1.0 + setback))
            found = self._timed(changed, limit_s)
            if found is not None:
                current, chain = found, found.critical_chain()
                if current.makespan_s < best.makespan_s * (1.0 - 1e-9):
                    best = current
        return best

    def _filling_ends(self, found: _Timed) -> _Timed:
        """The same with the next step's encoders after all else, if it is no longer for that."""
        last = sorted(found.placed, key=lambda placed: placed[0].cascade.steps_ahead)
        return self._timed(last, found.makespan_s) or found

    def _timed(self, placed: list[_Placed], limit_s: float) -> _Timed | None:
        """When launches run; None if one trains before its encoders, or the limit is passed."""
        free_s = [0.0] * self._num_gpus
        last = [-1] * self._num_gpus
        made: dict[_Key, int] = {}
        ends_s: list[float] = []
        causes: list[int] = []
        makespan_s = 0.0
        for index, (job, gpus) in enumerate(placed):
            start_s, cause = 0.0, -1
            for gpu in gpus:
                if free_s[gpu] > start_s:
                    start_s, cause = free_s[gpu], last[gpu]
            for key in job.needs:
                maker = made.get(key)
                if maker is None:
                    return None
                ready_s = ends_s[maker] + self._handoff(*placed[maker], gpus)
                if ready_s > start_s:
                    start_s, cause = ready_s, maker
            end_s = start_s + job.seconds[gpus]
            if end_s > limit_s:
                return None
            for gpu in gpus:
                free_s[gpu] = end_s
                last[gpu] = index
            for key in job.makes:
                made[key] = index
            ends_s.append(end_s)
            causes.append(cause)
            makespan_s = max(makespan_s, end_s)
        return _Timed(placed, ends_s, causes, free_s, makespan_s)

    def _changed(self, placed: list[_Placed], index: int, free_s: Sequence[float]) -> list[_Placed]:
        """The launches with one of them changed; perhaps as they were."""
        chance = self._rng.random()
        if chance < _TO_OTHERS:
            job = placed[index][0]
            changed = list(placed)
            changed[index] = (job, self._some_block(self._one_of(job.degrees), free_s))
            return self._moved(changed, index) if chance < _TO_OTHERS_AND_MOVED else changed
        if chance < _MOVED:
            return self._moved(placed, index)
        if chance < _SWAPPED:
            return self._swapped(placed, index)
        return self._restacked(placed, index)

    def _some_block(self, blocks: Sequence[Gpus], free_s: Sequence[float]) -> Gpus:
        """Of a few blocks the one that ends first: among many GPUs, most have nothing to spare."""
        number = 1 + len(blocks) // _BLOCKS_OF_A_TRY
        tried = [self._one_of(blocks) for _ in range(number)]
        return min(tried, key=lambda gpus: max([free_s[gpu] for gpu in gpus]))

    def _moved(self, placed: list[_Placed], index: int) -> list[_Placed]:
        """Anywhere else in the order."""
        changed = list(placed)
        one = changed.pop(index)
        changed.insert(self._some_index(placed), one)
        return changed

    def _swapped(self, placed: list[_Placed], index: int) -> list[_Placed]:
        """In the place of another one, and that in its place."""
        other = self._some_index(placed)
        (one, one_gpus), (two, two_gpus) = placed[index], placed[other]
        if two_gpus not in one.seconds or one_gpus not in two.seconds:
            return placed
        changed = list(placed)
        changed[index], changed[other] = (two, one_gpus), (one, two_gpus)
        return changed

    def _restacked(self, placed: list[_Placed], index: int) -> list[_Placed]:
        """Its clips dealt anew with another launch of the shape, or with a new one beside it."""
        job = placed[index][0]
        others = [
            i for i, (other, _) in enumerate(placed) if other.shape == job.shape and i != index
        ]
        slots = list(job.cascade.slots)
        changed = list(placed)
        if others and self._rng.random() < _WITH_ANOTHER:
            other = self._one_of(others)
            slots += placed[other][0].cascade.slots
        else:
            other = index + 1
            changed.insert(other, placed[index])
        self._rng.shuffle(slots)
        most = self._variants.most_clips(job.shape)
        size = self._one_of(range(max(len(slots) - most, 0), min(len(slots), most) + 1))
        parts = {index: slots[:size], other: slots[size:]}
        for place, part in parts.items():
            if part:
                dealt, gpus = self._job(self._variants.cascade(job.shape, part)), changed[place][1]
                if gpus not in dealt.seconds:
                    return placed
                changed[place] = (dealt, gpus)
        for place, part in parts.items():
            if not part:  # one of the two at most
                del changed[place]
        return changed

    def _job(self, cascade: Cascade) -> _Job:
        variants = self._variants
        shape = variants.shape_of(cascade)
        known = self._known.get((shape, cascade.num_clips))
        if known is None:
            on_each = {
                gpus: launch_s
                for blocks in self._blocks
                for gpus in blocks
                if (launch_s := variants.launch_s(cascade, gpus)) < inf
            }
            able = [[gpus for gpus in blocks if gpus in on_each] for blocks in self._blocks]
            known = on_each, [blocks for blocks in able if blocks]
            self._known[shape, cascade.num_clips] = known
        seconds, degrees = known
        needs: tuple[_Key, ...] = ()
        makes: tuple[_Key, ...] = ()
        if cascade.module == "dit":
            clips = self._clips
            needs = tuple([(m, slot) for slot in cascade.slots for m in clips[slot].to_encode])
        elif not cascade.steps_ahead:
            makes = tuple([(cascade.module, slot) for slot in cascade.slots])
        return _Job(cascade, shape, seconds, degrees, needs, makes)

    def _handoff(self, maker: _Job, made_on: Gpus, gpus: Gpus) -> float:
        key = (maker.shape, maker.cascade.num_clips, made_on, gpus)
        known_s = self._handoff_s.get(key)
        if known_s is None:
            known_s = self._variants.problem.costs.handoff_s(maker.cascade, made_on, gpus)
            self._handoff_s[key] = known_s
        return known_s

    def _some_index(self, placed: list[_Placed]) -> int:
        return int(self._rng.random() * len(placed))

    def _one_of(self, items: Sequence[T]) -> T:
        return items[int(self._rng.random() * len(items))]
