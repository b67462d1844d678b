"""What each bucket of a dataset costs: its share of all tokens, and of the training FLOPs."""

from collections import Counter
from dataclasses import dataclass

from arachne.core.bucket import Bucket
from arachne.core.ledger import Ledger
from arachne.core.model_shape import ModelShape
from arachne.cost.flops import training_flops


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketShare:
    """The clips of one bucket.

    Attributes:
        num_clips: How many train in it.
        num_tokens: Video tokens of one.
        clip_flops: Training FLOPs of one, alone in its step.
        token_share: Of the video tokens of all clips.
        flops_share: Of the training FLOPs of all clips.
    """

    bucket: Bucket
    num_clips: int
    num_tokens: int
    clip_flops: float
    token_share: float
    flops_share: float


def bucket_shares(ledger: Ledger, shape: ModelShape) -> tuple[BucketShare, ...]:
    """The buckets of a ledger, the largest first, for an epoch of a model of this shape."""
    clips = Counter((row.num_tokens, row.bucket) for row in ledger.usable if row.bucket)
    flops = {num_tokens: training_flops(shape, num_tokens) for num_tokens, _ in clips}
    all_tokens = sum(num_tokens * count for (num_tokens, _), count in clips.items())
    all_flops = sum(flops[num_tokens] * count for (num_tokens, _), count in clips.items())
    return tuple(
        BucketShare(
            bucket=bucket,
            num_clips=count,
            num_tokens=num_tokens,
            clip_flops=flops[num_tokens],
            token_share=num_tokens * count / all_tokens,
            flops_share=flops[num_tokens] * count / all_flops,
        )
        for (num_tokens, bucket), count in sorted(clips.items(), reverse=True)
    )
