"""A cascade: the smallest unit that is scheduled."""

from dataclasses import dataclass
from typing import Literal

from arachne.core.bucket import Bucket

Encoder = Literal["text", "vae"]
"""Frozen modules whose results a `dit` cascade needs."""

Module = Literal["text", "vae", "dit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cascade:
    """One module's work on one or more clips of one shape, stacked along the batch dimension.

    Attributes:
        module: Which module works.
        slots: Slots of the clips in the global batch, ascending.
        bucket: The clips' shape.
        num_tokens: Video tokens of one clip, also for encoders.
        steps_ahead: 1 for an encoder cascade of the next step's batch, which fills the idle ends
            of this step; its slots are those of that batch.
    """

    module: Module
    slots: tuple[int, ...]
    bucket: Bucket
    num_tokens: int
    steps_ahead: int = 0

    def __post_init__(self) -> None:
        assert self.slots, "a cascade works on at least one clip"
        if len(self.slots) > 1:
            assert list(self.slots) == sorted(set(self.slots)), self.slots
        assert self.steps_ahead in ((0,) if self.module == "dit" else (0, 1)), self

    @property
    def num_clips(self) -> int:
        """Clips stacked in this cascade."""
        return len(self.slots)
