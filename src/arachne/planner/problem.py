"""What a planner is given, and what it gives back."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from arachne.core.batch import Batch, BatchClip
from arachne.core.blocks import (
    Block,
    aligned_blocks,
    has_blocks_from_both_ends,
    plan_blocks,
)
from arachne.core.cascade import Cascade
from arachne.core.launch_mode import WHOLE, LaunchMode
from arachne.core.plan import Plan

Placement = tuple[Cascade, tuple[int, ...]]
"""A cascade and the GPUs that it runs on."""

SHORTEST_S = 1e-9
"""Shorter launches count as this long, so that the starts on a GPU order its launches strictly."""


class LaunchCosts(Protocol):
    """Costs of launches; they depend on shape, number of clips and GPUs, not on which clips.

    A launch runs in the mode that is fastest among those that fit: launches on one GPU follow each
    other, so that no other launch can gain from a slower one. Costs that inherit from this class
    have one mode, one GPU speed and free handoffs until they say otherwise.
    """

    @property
    def memory_bytes(self) -> float:
        """Memory of one GPU that training may use; for messages."""
        ...

    def launch_s(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        """Seconds that the launch keeps these GPU slots busy."""
        ...

    def launch_bytes(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        """Memory that each of these GPU slots needs; for messages."""
        ...

    def added_bytes(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        """Memory that as many clips again would add to the launch, on each of these GPU slots."""
        twice = replace(cascade, slots=tuple(range(2 * cascade.num_clips)))
        return self.launch_bytes(twice, gpus) - self.launch_bytes(cascade, gpus)

    def fits(self, cascade: Cascade, gpus: tuple[int, ...]) -> bool:
        """Whether the launch can run on these GPU slots."""
        ...

    def mode(self, cascade: Cascade, gpus: tuple[int, ...]) -> LaunchMode:
        """The mode whose seconds `launch_s` gives."""
        return WHOLE

    def handoff_s(
        self,
        cascade: Cascade,
        from_gpus: tuple[int, ...],
        to_gpus: tuple[int, ...],
    ) -> float:
        """Seconds that bring what encoder cascade `cascade` made to the GPUs that train on it."""
        return 0.0

    def gpu_speed(self, gpu: int) -> float:
        """Computing speed of a GPU slot beside the fastest one's, which is 1."""
        return 1.0


SHAPE_SETTINGS = "data.resolution or data.frame_buckets"
"""What bounds the shapes of a dataset's clips."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningProblem:
    """One step's clips and where they may run.

    Attributes:
        batch: The clips; those whose `to_encode` is empty need no encoder.
        next_batch: The next step's clips, whose encoders fill the idle ends of this step; None
            plans no such filling.
        num_gpus: GPU slots 0 … num_gpus − 1.
        degrees: Degrees that may be used, ascending; `core.blocks` names their blocks.
        costs: What a launch costs.
        stack_tokens: Clips of one shape may share a cascade of at most this many tokens.
        seed: Seed of the search.
        iterations: Search steps after the warm start.
        shape_settings: What bounds the shapes of clips, as messages name it.
        max_degree: The setting that bounds degrees, also on more GPUs, for messages; 0 = none.
    """

    batch: Batch
    num_gpus: int
    degrees: tuple[int, ...]
    costs: LaunchCosts
    stack_tokens: int = 0
    seed: int = 0
    iterations: int = 2000
    next_batch: Batch | None = None
    shape_settings: str = SHAPE_SETTINGS
    max_degree: int = 0

    def __post_init__(self) -> None:
        assert self.degrees, "at least one degree is allowed"
        assert list(self.degrees) == sorted(set(self.degrees)), self.degrees
        assert self.degrees[0] >= 1, self.degrees
        assert self.degrees[-1] <= self.num_gpus, self.degrees

    @property
    def batches(self) -> tuple[Batch, ...]:
        """The step's batch, then the next step's if its encoders are planned here."""
        return (self.batch,) if self.next_batch is None else (self.batch, self.next_batch)

    @property
    def has_encoders(self) -> bool:
        """Whether anything but training is to be planned."""
        return any(clip.to_encode for batch in self.batches for clip in batch.clips)

    @property
    def has_blocks_from_both_ends(self) -> bool:
        """Whether block trees have blocks that lie from the last GPU on.

        Not with encoders, which fill what is left over: there they did as often harm, since the
        search has more trees to try.
        """
        return not self.has_encoders and has_blocks_from_both_ends(self.num_gpus, self.degrees)

    @property
    def allowed_blocks(self) -> dict[int, tuple[Block, ...]]:
        """All blocks that plans may use; the search on whole plans looks at them."""
        return plan_blocks(self.num_gpus, self.degrees)

    @property
    def blocks(self) -> dict[int, tuple[Block, ...]]:
        """The blocks of block trees, of each degree in order of their first GPU."""
        if self.has_blocks_from_both_ends:
            return self.allowed_blocks
        return aligned_blocks(self.num_gpus, self.degrees)

    def clip(self, cascade: Cascade) -> BatchClip:
        """The first clip of a cascade."""
        return self.batches[cascade.steps_ahead].clips[cascade.slots[0]]

    def duration_s(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        """Seconds of a launch, at least `SHORTEST_S`."""
        return max(self.costs.launch_s(cascade, gpus), SHORTEST_S)


Planner = Callable[[PlanningProblem], Plan]
"""Raises InfeasibleError if it knows no plan for the problem."""
