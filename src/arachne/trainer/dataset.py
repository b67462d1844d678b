"""The clips that a run trains on, as batches and as cached arrays. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from arachne.core.batch import Batch, BatchClip
from arachne.core.errors import DamagedFileError
from arachne.core.ledger import LedgerRow
from arachne.data.cache import LatentCache
from arachne.data.frame_size import Fit
from arachne.data.prepare import keys_of
from arachne.data.sampler import Draw
from arachne.models.first_frame import Packing


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipArrays:
    """Cached arrays of a clip, float32.

    Attributes:
        latents: Of the clip, [C, F, H, W].
        text: Token states of its caption, [L, D].
        first_latents: For image to video, latents of its first frame before grey ones, likewise.
        image_states: What an image encoder makes of that frame, [T, I], for models that see it.
    """

    latents: NDArray[np.float32]
    text: NDArray[np.float32]
    first_latents: NDArray[np.float32] | None = None
    image_states: NDArray[np.float32] | None = None


def arrays_of(
    encoded: NDArray[np.float32], text: NDArray[np.float32], packing: Packing | None
) -> ClipArrays:
    """A clip's arrays from what the two encoders made of it.

    Raises:
        DataError: An image-to-video run finds no first frame in it.
    """
    if packing is None:
        return ClipArrays(latents=encoded, text=text)
    whole = packing.unpack(encoded)
    return ClipArrays(
        latents=whole.latents,
        text=text,
        first_latents=whole.first_latents,
        image_states=whole.states,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """A step's batch for planning, and which item of the dataset fills each slot."""

    batch: Batch
    items: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """Prepared clips of a run.

    Attributes:
        rows: Usable clips, in the dataset's order. An *item* is a clip with one of its captions:
            the clip's index in `rows`, and `len(rows)` more for each caption before that.
        cache_dir: Where their latents and token states lie.
        fps: Frames per second of the latents.
        video_fingerprint: Names the video encoder in the cache.
        text_fingerprint: Names the text encoder in the cache.
        packing: How cached latents hold the first frame as well; None for text to video.
        fit: Whether their frames were cropped, or set in black.
        text_sees_clip: Whether token states are those of a caption after its clip's first frame.
    """

    rows: tuple[LedgerRow, ...]
    cache_dir: Path
    fps: float
    video_fingerprint: str
    text_fingerprint: str
    packing: Packing | None = None
    fit: Fit = "crop"
    text_sees_clip: bool = False

    def step_batch(self, step: int, draws: Sequence[Draw]) -> StepBatch:
        """The clips that were drawn for a step."""
        items = tuple(
            draw.item + draw.word % len(self.rows[draw.item].clip.captions) * len(self.rows)
            for draw in draws
        )
        return StepBatch(batch=self.batch_of(items, step), items=items)

    def row(self, item: int) -> LedgerRow:
        """An item's clip, with the caption that is meant as its only one."""
        caption, index = divmod(item, len(self.rows))
        row = self.rows[index]
        clip = replace(row.clip, caption=row.clip.captions[caption], other_captions=())
        return replace(row, clip=clip)

    def batch_of(self, items: tuple[int, ...], step: int) -> Batch:
        """Given items as a batch."""
        return Batch(step=step, clips=tuple(self._clip(item) for item in items))

    def read(self, item: int) -> ClipArrays:
        """A clip's arrays from the cache.

        A damaged one is deleted, so that the next start of a run makes it again.

        Raises:
            DataError: They are missing or damaged.
        """
        latents_key, text_key = keys_of(
            self.row(item),
            self.fps,
            self.video_fingerprint,
            self.text_fingerprint,
            self.fit,
            text_sees_clip=self.text_sees_clip,
        )
        return arrays_of(self._array(latents_key), self._array(text_key), self.packing)

    def _array(self, key: str) -> NDArray[np.float32]:
        cache = LatentCache(self.cache_dir)
        try:
            return cache.get(key)
        except DamagedFileError:
            cache.discard(key)
            raise

    def _clip(self, item: int) -> BatchClip:
        row = self.rows[item % len(self.rows)]
        assert row.bucket is not None, row
        return BatchClip(name=row.clip.name, bucket=row.bucket, num_tokens=row.num_tokens)
