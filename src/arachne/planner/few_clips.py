"""The shortest plan of a few clips in a small world, by branch and bound.

Where there are fewer launches than GPUs, what counts is which blocks they take: of uneven GPUs the
slow ones are best left over, and these may lie anywhere. Each clip is a launch of its own, on
blocks of which any two are nested or disjoint, so that a plan is as long as its most loaded GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from arachne.core.blocks import cross
from arachne.core.plan import Plan
from arachne.planner.problem import Placement
from arachne.planner.schedule import scheduled_as_given
from arachne.planner.variants import Gpus, Variants

MOST_GPUS, MOST_CLIPS = 64, 8

_NODES_OF_AN_ITERATION = 2
"""Parts of plans that are looked at for each iteration."""


def plan_few_clips(variants: Variants, planner: str, best_s: float) -> Plan | None:
    """A plan of single clips that is shorter than `best_s`; None if none was found.

    None too where there are more GPUs or clips than this is made for.
    """
    problem = variants.problem
    if problem.num_gpus > MOST_GPUS or len(problem.batch.clips) > MOST_CLIPS:
        return None
    search = _Search(variants, best_s)
    search.extend(0, 0, [0.0] * problem.num_gpus, 0.0, 0)
    if not search.best:
        return None
    return scheduled_as_given(problem, planner, _largest_first(variants, search))


def _largest_first(variants: Variants, search: "_Search") -> list[Placement]:
    placed = sorted(
        zip(search.clips, search.best, strict=True), key=lambda one: -len(search.blocks[one[1]])
    )
    return [
        (variants.cascade(clip.shape, [clip.slot]), search.blocks[block]) for clip, block in placed
    ]


@dataclass(frozen=True, slots=True)
class _Clip:
    """One launch.

    Attributes:
        shape: Its shape's index.
        slot: Its clip.
        seconds: On each block, by index.
        least_area_s: The least of seconds times GPUs.
    """

    shape: int
    slot: int
    seconds: Sequence[float]
    least_area_s: float


class _Search:
    """Extends parts of plans by one clip after another, those of the longest shapes first.

    Attributes:
        clips: In the order in which they get their blocks.
        blocks: All that plans look at.
        best: The blocks of the shortest plan found, by index; none before one was found.
    """

    def __init__(self, variants: Variants, best_s: float) -> None:
        problem = variants.problem
        self.blocks: list[Gpus] = [gpus for of in problem.blocks.values() for gpus in of]
        self.clips = _clips(variants, self.blocks)
        self.best: tuple[int, ...] = ()
        self._best_s = best_s
        self._crossing = [
            sum(1 << index for index, other in enumerate(self.blocks) if cross(gpus, other))
            for gpus in self.blocks
        ]
        self._left_s = [
            sum(clip.least_area_s for clip in self.clips[i:]) for i in range(len(self.clips) + 1)
        ]
        self._nodes_left = problem.iterations * _NODES_OF_AN_ITERATION
        self._chosen: list[int] = []

    def extend(
        self, index: int, excluded: int, loads_s: list[float], area_s: float, first: int
    ) -> None:
        """Give clip `index` each block in turn that leads to a shorter plan, the best one first.

        Args:
            index: The clip.
            excluded: Bits of the blocks that cross one in use.
            loads_s: Of each GPU, so far.
            area_s: Seconds times GPUs in use so far.
            first: The first block that it may have: clips of one shape are interchangeable.
        """
        if index == len(self.clips):
            self._best_s, self.best = max(loads_s), tuple(self._chosen)
            return
        clip = self.clips[index]
        is_same = index + 1 < len(self.clips) and self.clips[index + 1].shape == clip.shape
        tried: list[tuple[float, int]] = []
        for block in range(first, len(self.blocks)):
            if not excluded >> block & 1:
                end_s = clip.seconds[block] + max([loads_s[gpu] for gpu in self.blocks[block]])
                tried.append((end_s, block))
        for end_s, block in sorted(tried):
            gpus, seconds = self.blocks[block], clip.seconds[block]
            used_s = area_s + seconds * len(gpus)
            if end_s >= self._limit_s or self._nodes_left <= 0:
                return
            if used_s + self._left_s[index + 1] >= self._limit_s * len(loads_s):
                continue
            self._nodes_left -= 1
            after_s = list(loads_s)
            for gpu in gpus:
                after_s[gpu] += seconds
            self._chosen.append(block)
            more = excluded | self._crossing[block]
            self.extend(index + 1, more, after_s, used_s, block if is_same else 0)
            self._chosen.pop()

    @property
    def _limit_s(self) -> float:
        return self._best_s * (1.0 - 1e-9)


def _clips(variants: Variants, blocks: Sequence[Gpus]) -> list[_Clip]:
    found: list[_Clip] = []
    for shape in range(variants.num_shapes):
        durations_s = [variants.duration_s((shape, 1), gpus) for gpus in blocks]
        least_s = min([s * len(gpus) for s, gpus in zip(durations_s, blocks, strict=True)])
        found += [
            _Clip(shape, slot, durations_s, least_s) for slot in variants.slots_of_shape[shape]
        ]
    return sorted(found, key=lambda clip: -clip.least_area_s)
