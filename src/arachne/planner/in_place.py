"""Encoders where today's trainers have them: on the GPUs that train the clip, right before it.

For planners that decide about training alone: the static ones, and models of other systems. A
cascade's clips are spread over its GPUs, cut into equal groups; captions start from the other end,
so that video and text are encoded side by side. Encoders of the next step come after all
else, the longest first, each where it ends first.
"""

from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heapreplace
from math import ceil

from arachne.core.blocks import blocks
from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade, Encoder, Module
from arachne.core.errors import InfeasibleError
from arachne.planner.infeasible import does_not_fit
from arachne.planner.problem import Placement, PlanningProblem
from arachne.planner.stacking import cascade_of, stacked_cascades

ENCODERS: tuple[Encoder, ...] = ("vae", "text")

Gpus = tuple[int, ...]

_Way = tuple[int, int]
"""Degree, and the most clips of a part."""


class InPlace:
    """Puts the encoders of a problem beside what a planner decided about.

    Attributes:
        has_encoders: Whether this step's clips need any.
    """

    def __init__(self, problem: PlanningProblem, planner: str) -> None:
        self._problem = problem
        self._planner = planner
        self.has_encoders = any(clip.to_encode for clip in problem.batch.clips)
        self._ways: dict[tuple[Module, Bucket, int, int], _Way] = {}
        self._seconds: dict[tuple[Module, Bucket, int], float] = {}

    def with_encoders(self, cascade: Cascade, gpus: Gpus) -> list[Placement]:
        """The encoders that `cascade` needs, and `cascade` itself.

        Raises:
            InfeasibleError: An encoder fits at no degree that divides theirs.
        """
        if not self.has_encoders:
            return [(cascade, gpus)]
        clips = self._problem.batch.clips
        placements: list[Placement] = []
        for module in ENCODERS:
            slots = [slot for slot in cascade.slots if module in clips[slot].to_encode]
            if slots:
                stack = cascade_of(clips, slots, module)
                degree, size = self._soonest(stack, gpus)
                for index, part in enumerate(_parts(stack, size)):
                    turn = index if module == "vae" else -1 - index
                    placements.append((part, _group(gpus, degree, turn)))
        return [*placements, (cascade, gpus)]

    def ahead(self, free_s: Sequence[float]) -> list[Placement]:
        """The encoders of the next step, on GPUs that are free from `free_s` on.

        Raises:
            InfeasibleError: A clip's encoder fits on no block.
        """
        problem = self._problem
        if problem.next_batch is None:
            return []
        waiting: list[tuple[float, int, Cascade]] = []
        for module in ENCODERS:
            for stack in stacked_cascades(
                problem.next_batch, problem.stack_tokens, module, steps_ahead=1
            ):
                degree, size = self._narrowest(stack)
                waiting += [
                    (self._first_block_s(part, degree), degree, part)
                    for part in _parts(stack, size)
                ]
        waiting.sort(key=lambda one: -one[0])
        return _placed_where_free(problem, [one[1:] for one in waiting], free_s)

    def _soonest(self, stack: Cascade, gpus: Gpus) -> _Way:
        """What encodes the stack within `gpus` soonest; ties to the smaller degree."""
        key = (stack.module, stack.bucket, stack.num_clips, len(gpus))
        known = self._ways.get(key)
        if known is None:
            found: list[tuple[float, int, int]] = []
            for degree in self._problem.degrees:
                num_groups, rest = divmod(len(gpus), degree)
                if rest == 0:
                    group = _group(gpus, degree, 0)
                    size = self._largest_part(stack, ceil(stack.num_clips / num_groups), group)
                    if size:
                        num_turns = ceil(ceil(stack.num_clips / size) / num_groups)
                        part_s = self._problem.duration_s(_parts(stack, size)[0], group)
                        found.append((num_turns * part_s, degree, size))
            if not found:
                raise self._does_not_fit(stack)
            known = self._ways[key] = min(found)[1:]
        return known

    def _narrowest(self, stack: Cascade) -> _Way:
        """The least degree at which a clip of the stack fits."""
        key = (stack.module, stack.bucket, stack.num_clips, 0)
        known = self._ways.get(key)
        if known is None:
            for degree in self._problem.degrees:
                size = self._largest_part(stack, stack.num_clips, tuple(range(degree)))
                if size:
                    known = self._ways[key] = (degree, size)
                    break
            else:
                raise self._does_not_fit(stack)
        return known

    def _first_block_s(self, part: Cascade, degree: int) -> float:
        key = (part.module, part.bucket, part.num_clips)
        known_s = self._seconds.get(key)
        if known_s is None:
            known_s = self._problem.duration_s(part, tuple(range(degree)))
            self._seconds[key] = known_s
        return known_s

    def _largest_part(self, stack: Cascade, size: int, gpus: Gpus) -> int:
        """`size`, or a half, a quarter … of it, as fits; 0 if a single clip does not."""
        while size and not self._problem.costs.fits(_parts(stack, size)[0], gpus):
            size //= 2
        return size

    def _does_not_fit(self, stack: Cascade) -> InfeasibleError:
        narrowest = tuple(range(self._problem.degrees[0]))
        single = _parts(stack, 1)[0]
        return does_not_fit(self._problem, single, narrowest, planner=self._planner)


def _parts(stack: Cascade, size: int) -> list[Cascade]:
    """The stack cut into parts of `size` clips, and the rest."""
    slots = stack.slots
    if size >= len(slots):
        return [stack]
    return [
        replace(stack, slots=slots[first : first + size]) for first in range(0, len(slots), size)
    ]


def _group(gpus: Gpus, degree: int, turn: int) -> Gpus:
    """One of the equal groups of `gpus`, in turn; negative turns count from the last one."""
    first = turn * degree % len(gpus)
    return gpus[first : first + degree]


def _placed_where_free(
    problem: PlanningProblem, waiting: Sequence[tuple[int, Cascade]], free_s: Sequence[float]
) -> list[Placement]:
    """Each cascade, in order, on the block of its degree that is free first."""
    free = list(free_s)
    heaps: dict[int, list[tuple[float, Gpus]]] = {}
    placements: list[Placement] = []
    for degree, cascade in waiting:
        heap = heaps.get(degree)
        if heap is None:
            heap = heaps[degree] = [(0.0, gpus) for gpus in blocks(problem.num_gpus, degree)]
            heapify(heap)
        known_s, gpus = heap[0]
        while (start_s := max([free[gpu] for gpu in gpus])) > known_s:  # others ran there since
            heapreplace(heap, (start_s, gpus))
            known_s, gpus = heap[0]
        for gpu in gpus:
            free[gpu] = start_s + problem.duration_s(cascade, gpus)
        placements.append((cascade, gpus))
    return placements
