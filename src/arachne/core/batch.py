"""A global batch: the clips of one step, in an order that no rank or plan changes."""

from dataclasses import dataclass

from arachne.core.bucket import Bucket
from arachne.core.cascade import Encoder


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchClip:
    """One clip of a batch, as planning sees it.

    Attributes:
        name: The clip's name, for messages.
        bucket: Its shape.
        num_tokens: Tokens of that shape.
        to_encode: Encoders that have to run before this clip trains; none if all is cached.
    """

    name: str
    bucket: Bucket
    num_tokens: int
    to_encode: tuple[Encoder, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The clips of one step; a clip's *slot* is its index in `clips`."""

    step: int
    clips: tuple[BatchClip, ...]
