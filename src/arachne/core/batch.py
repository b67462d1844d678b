"""A global batch: the clips of one step, in an order that no rank or plan changes."""

from dataclasses import dataclass

from arachne.core.bucket import Bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchClip:
    """One clip of a batch, as planning sees it.

    Attributes:
        name: The clip's name, for messages.
        bucket: Its shape.
        num_tokens: Tokens of that shape.
    """

    name: str
    bucket: Bucket
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The clips of one step; a clip's *slot* is its index in `clips`."""

    step: int
    clips: tuple[BatchClip, ...]
