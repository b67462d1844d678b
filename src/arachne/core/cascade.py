"""A cascade: the smallest unit that is scheduled."""

from dataclasses import dataclass
from typing import Literal

from arachne.core.bucket import Bucket

Module = Literal["text", "vae", "dit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cascade:
    """One module's work on one or more clips of one shape, stacked along the batch dimension.

    Attributes:
        module: Which module works; the planners of today plan `dit`.
        slots: Slots of the clips in the global batch, ascending.
        bucket: The clips' shape.
        num_tokens: Tokens of one clip.
    """

    module: Module
    slots: tuple[int, ...]
    bucket: Bucket
    num_tokens: int

    def __post_init__(self) -> None:
        assert self.slots, "a cascade works on at least one clip"
        assert list(self.slots) == sorted(set(self.slots)), self.slots

    @property
    def num_clips(self) -> int:
        """Clips stacked in this cascade."""
        return len(self.slots)
