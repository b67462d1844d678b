"""The clips that a run trains on: which ones a step takes, and their cached arrays. No torch."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from arachne.core.batch import Batch, BatchClip
from arachne.core.ledger import LedgerRow
from arachne.data.cache import LatentCache
from arachne.data.prepare import keys_of
from arachne.data.sampler import batch_indices


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipArrays:
    """Cached arrays of a clip: latents [C, F, H, W] and token states [L, D], float32."""

    latents: NDArray[np.float32]
    text: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """A step's batch for planning, and which item of the dataset fills each slot."""

    batch: Batch
    items: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """Prepared clips of a run.

    Attributes:
        rows: Usable clips, in the dataset's order; an *item* is an index into them.
        cache_dir: Where their latents and token states lie.
        fps: Frames per second of the latents.
        video_fingerprint: Names the video encoder in the cache.
        text_fingerprint: Names the text encoder in the cache.
    """

    rows: tuple[LedgerRow, ...]
    cache_dir: Path
    fps: float
    video_fingerprint: str
    text_fingerprint: str

    def step_batch(self, *, seed: int, step: int, num_clips: int) -> StepBatch:
        """The clips of one step: a function of (seed, step) alone."""
        items = tuple(int(i) for i in batch_indices(seed, step, len(self.rows), num_clips))
        return StepBatch(batch=self.batch_of(items, step), items=items)

    def batch_of(self, items: tuple[int, ...], step: int) -> Batch:
        """Given items as a batch."""
        return Batch(step=step, clips=tuple(self._clip(item) for item in items))

    def read(self, item: int) -> ClipArrays:
        """A clip's arrays from the cache.

        Raises:
            DataError: They are missing or damaged.
        """
        cache = LatentCache(self.cache_dir)
        latents_key, text_key = keys_of(
            self.rows[item], self.fps, self.video_fingerprint, self.text_fingerprint
        )
        return ClipArrays(latents=cache.get(latents_key), text=cache.get(text_key))

    def _clip(self, item: int) -> BatchClip:
        row = self.rows[item]
        assert row.bucket is not None, row
        return BatchClip(name=row.clip.name, bucket=row.bucket, num_tokens=row.num_tokens)
