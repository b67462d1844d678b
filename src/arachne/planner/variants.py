"""Costs of every variant (shape, number of stacked clips), looked up once per kind of block."""

from collections import defaultdict
from functools import cached_property
from math import inf

from arachne.core.blocks import blocks
from arachne.core.bucket import Bucket
from arachne.planner.best_stacks import BestStacks
from arachne.planner.problem import PlanningProblem
from arachne.planner.stacking import cascade_of, stack_limit

Variant = tuple[int, int]
"""Index of a shape, and how many clips of it one cascade stacks."""

Gpus = tuple[int, ...]

Kind = tuple[int, tuple[float, ...]]
"""Degree, and seconds of probes: blocks of one kind cost the same."""


class Variants:
    """The shapes of a batch with their slots, and the durations of their stacks."""

    def __init__(self, problem: PlanningProblem) -> None:
        self.problem = problem
        slots: dict[Bucket, list[int]] = defaultdict(list)
        for slot, clip in enumerate(problem.batch.clips):
            slots[clip.bucket].append(slot)
        self.slots_of_shape: tuple[tuple[int, ...], ...] = tuple(map(tuple, slots.values()))
        self.shape_of_bucket = {bucket: index for index, bucket in enumerate(slots)}
        self._kinds: dict[Gpus, Kind] = {}
        self._durations_s: dict[tuple[Variant, Kind], float] = {}
        self._stacks: dict[tuple[int, Kind], BestStacks] = {}

    @property
    def num_shapes(self) -> int:
        """Different shapes in the batch."""
        return len(self.slots_of_shape)

    def most_clips(self, shape: int) -> int:
        """Most clips of a shape that one cascade may hold."""
        slots = self.slots_of_shape[shape]
        num_tokens = self.problem.batch.clips[slots[0]].num_tokens
        return min(len(slots), stack_limit(num_tokens, self.problem.stack_tokens))

    def duration_s(self, variant: Variant, gpus: Gpus) -> float:
        """Seconds of a launch of this variant; infinite where it does not fit."""
        key = (variant, self.kind(gpus))
        known_s = self._durations_s.get(key)
        if known_s is None:
            known_s = self._durations_s[key] = self._asked_s(variant, gpus)
        return known_s

    def kind(self, gpus: Gpus) -> Kind:
        """What the block costs like: blocks that cost the same for one clip and for a full stack
        of every shape are taken to cost the same for all stacks between.
        """
        known = self._kinds.get(gpus)
        if known is None:
            probes_s = tuple([self._asked_s(variant, gpus) for variant in self._probes])
            known = self._kinds[gpus] = (len(gpus), probes_s)
        return known

    def stacks(self, shape: int, gpus: Gpus) -> BestStacks:
        """How any number of clips of the shape is best stacked on a block."""
        key = (shape, self.kind(gpus))
        known = self._stacks.get(key)
        if known is None:
            durations_s = [
                self.duration_s((shape, size), gpus)
                for size in range(1, self.most_clips(shape) + 1)
            ]
            known = self._stacks[key] = BestStacks(durations_s)
        return known

    @cached_property
    def kinds_of_degree(self) -> dict[int, tuple[Gpus, ...]]:
        """Of each allowed degree, the first block of each kind."""
        found: dict[int, tuple[Gpus, ...]] = {}
        for degree in self.problem.degrees:
            firsts: dict[Kind, Gpus] = {}
            for gpus in blocks(self.problem.num_gpus, degree):
                firsts.setdefault(self.kind(gpus), gpus)
            found[degree] = tuple(firsts.values())
        return found

    @cached_property
    def _probes(self) -> tuple[Variant, ...]:
        return tuple(
            (shape, size)
            for shape in range(self.num_shapes)
            for size in sorted({1, self.most_clips(shape)})
        )

    def _asked_s(self, variant: Variant, gpus: Gpus) -> float:
        shape, num_clips = variant
        cascade = cascade_of(self.problem.batch.clips, self.slots_of_shape[shape][:num_clips])
        if not self.problem.costs.fits(cascade, gpus):
            return inf
        return self.problem.duration_s(cascade, gpus)
