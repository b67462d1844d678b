"""Costs of every variant (shape, number of stacked clips), looked up once per group of GPUs."""

from collections import defaultdict
from math import inf

from arachne.core.bucket import Bucket
from arachne.planner.problem import PlanningProblem
from arachne.planner.stacking import cascade_of, stack_limit

Variant = tuple[int, int]
"""Index of a shape, and how many clips of it one cascade stacks."""

Gpus = tuple[int, ...]


class Variants:
    """The shapes of a batch with their slots, and the durations of their stacks."""

    def __init__(self, problem: PlanningProblem) -> None:
        self.problem = problem
        slots: dict[Bucket, list[int]] = defaultdict(list)
        for slot, clip in enumerate(problem.batch.clips):
            slots[clip.bucket].append(slot)
        self.slots_of_shape: tuple[tuple[int, ...], ...] = tuple(map(tuple, slots.values()))
        self.shape_of_bucket = {bucket: index for index, bucket in enumerate(slots)}
        self._durations_s: dict[tuple[Variant, Gpus], float] = {}

    def most_clips(self, shape: int) -> int:
        """Most clips of a shape that one cascade may hold."""
        slots = self.slots_of_shape[shape]
        num_tokens = self.problem.batch.clips[slots[0]].num_tokens
        return min(len(slots), stack_limit(num_tokens, self.problem.stack_tokens))

    def duration_s(self, variant: Variant, gpus: Gpus) -> float:
        """Seconds of a launch of this variant; infinite where it does not fit."""
        key = (variant, gpus)
        known_s = self._durations_s.get(key)
        if known_s is None:
            shape, num_clips = variant
            cascade = cascade_of(self.problem.batch.clips, self.slots_of_shape[shape][:num_clips])
            fits = self.problem.costs.fits(cascade, gpus)
            known_s = self.problem.duration_s(cascade, gpus) if fits else inf
            self._durations_s[key] = known_s
        return known_s
