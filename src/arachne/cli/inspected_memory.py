"""What `arachne inspect` says of memory: one GPU that trains a clip of the largest shape alone."""

from collections.abc import Sequence
from dataclasses import dataclass

from arachne.core.bucket import Bucket
from arachne.core.model_shape import ModelShape
from arachne.core.units import bytes_text
from arachne.reporting.bucket_shares import BucketShare

_ELEMENT_BYTES = 2
"""Of bfloat16, in which models of this size are trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestShape:
    """Bytes that training the largest shape of a dataset takes on one GPU, as modelled.

    Attributes:
        bucket: The shape.
        num_tokens: Of one clip.
        resident_bytes: Weights, gradients and AdamW's state of all weights.
        kept_bytes: What a launch adds if no block is recomputed.
        recomputed_bytes: The same if all are.
    """

    bucket: Bucket
    num_tokens: int
    resident_bytes: float
    kept_bytes: float
    recomputed_bytes: float

    @property
    def text(self) -> str:
        """One line, in bfloat16 on one GPU."""
        return (
            f"largest shape {self.bucket} ({self.num_tokens:,} tokens): on one GPU in bfloat16 "
            f"{bytes_text(self.resident_bytes)} of weights, gradients and AdamW's state, and "
            f"{bytes_text(self.kept_bytes)} more for the clip, or "
            f"{bytes_text(self.recomputed_bytes)} with all blocks recomputed; for a run and a "
            "cluster: arachne plan RUN.toml --memory"
        )


def largest_shape(shares: Sequence[BucketShare], shape: ModelShape) -> LargestShape | None:
    """The shape with most tokens; None if no clip is usable. `shares` has the largest first."""
    from arachne.cost.activations import launch_activations
    from arachne.cost.memory import MemoryUse, launch_use, resident_use
    from arachne.cost.training_state import FULL_TRAINING

    if not shares:
        return None
    most = shares[0]
    made = launch_activations(shape, most.num_tokens, 1, 1, _ELEMENT_BYTES, False)
    return LargestShape(
        bucket=most.bucket,
        num_tokens=most.num_tokens,
        resident_bytes=resident_use(shape, 1, _ELEMENT_BYTES, FULL_TRAINING).total,
        kept_bytes=launch_use(MemoryUse(), made).total,
        recomputed_bytes=launch_use(MemoryUse(), made, shape.num_blocks).total,
    )
