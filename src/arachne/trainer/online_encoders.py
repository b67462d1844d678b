"""What a run encodes with within its steps: which arrays the cache lacks, and how they are made."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from arachne.core.batch import Batch
from arachne.core.bucket import Bucket
from arachne.core.cascade import Encoder
from arachne.core.errors import ConfigError, DataError
from arachne.core.families import family_named
from arachne.core.ledger import LedgerRow
from arachne.core.model_shape import ModelShape
from arachne.data.guarded_decoder import Refusal
from arachne.data.make_arrays import Workshop, encoded_latents
from arachne.models.first_frame import packing_of
from arachne.models.interface import TextEncoder, TiledEncoder, VideoEncoder
from arachne.trainer.config import RunConfig
from arachne.trainer.planning_shape import reads_pictures
from arachne.trainer.preparation import workshop_of
from arachne.trainer.resting_encoder import RestingEncoder

ENCODERS: tuple[Encoder, ...] = ("text", "vae")


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineEncoders:
    """The frozen encoders of a run, and where its clips come from.

    Attributes:
        workshop: Encoders, dataset and cache.
        model: What trains on the results.
        resting: Those that are on the host between their cascades.
    """

    workshop: Workshop
    model: ModelShape
    resting: Mapping[Encoder, RestingEncoder] = field(default_factory=dict[Encoder, RestingEncoder])

    def rest(self, module: Encoder) -> None:
        """A cascade is over; the next call that encodes wakes the encoder."""
        if module in self.resting:
            self.resting[module].rest()

    def _wake(self, module: Encoder) -> None:
        if module in self.resting:
            self.resting[module].wake()

    def key(self, module: Encoder, row: LedgerRow) -> str:
        """Of the array in the cache."""
        latents_key, states_key = self.workshop.store.keys_of(row)
        return latents_key if module == "vae" else states_key

    def result_shape(self, module: Encoder, bucket: Bucket) -> tuple[int, ...]:
        """Shape of what the video encoder makes of a clip, or of its text states [R, D]."""
        if module == "text":
            return self.model.text_rows, self.model.text_size
        grid = family_named(self.model.family).geometry.latent_grid(bucket)
        packing = packing_of(self.model)
        if packing is not None:
            return packing.packed_shape(self.model.latent_channels, grid)
        return self.model.latent_channels, *grid

    def latents(self, row: LedgerRow, frames: NDArray[np.uint8]) -> NDArray[np.float32]:
        """A clip's latents; NaN throughout if the encoder fails, which is remembered."""
        self._wake("vae")
        found = encoded_latents(self.workshop.video_encoder, frames)
        if isinstance(found, Refusal):
            self.workshop.store.rejections.add(self.key("vae", row), found.reason)
            return self.no_latents(row)
        return found

    def tile_shapes(self, row: LedgerRow) -> list[tuple[int, ...]]:
        """Of what the tiles of a clip give, which several ranks may encode."""
        bucket = row.bucket
        assert bucket is not None, row
        return list(self._tiled.tile_shapes(bucket.frames, bucket.height, bucket.width))

    def tile(
        self, row: LedgerRow, frames: NDArray[np.uint8] | None, index: int
    ) -> NDArray[np.float32]:
        """What one tile of a clip gives; NaN if there are no frames, or the encoder fails, which is
        remembered."""
        self._wake("vae")
        try:
            if frames is not None:
                return self._tiled.encode_tile(frames, index)
        except DataError as error:
            self.workshop.store.rejections.add(self.key("vae", row), str(error))
        return np.full(self.tile_shapes(row)[index], np.nan, np.float32)

    def joined(
        self, row: LedgerRow, frames: NDArray[np.uint8] | None, tiles: Sequence[NDArray[np.float32]]
    ) -> NDArray[np.float32]:
        """A clip's latents from what its tiles gave; NaN throughout if one of them is missing."""
        if frames is None or not all(np.isfinite(tile).all() for tile in tiles):
            return self.no_latents(row)
        return self._tiled.join_tiles(frames, tiles)

    @property
    def _tiled(self) -> TiledEncoder:
        encoder = self.workshop.video_encoder
        assert isinstance(encoder, TiledEncoder), "costs let no other encoder share a clip"
        return encoder

    def no_latents(self, row: LedgerRow) -> NDArray[np.float32]:
        """What stands for latents that could not be made."""
        assert row.bucket is not None, row
        return np.full(self.result_shape("vae", row.bucket), np.nan, np.float32)

    def states(self, row: LedgerRow) -> NDArray[np.float32]:
        """A clip's token states."""
        self._wake("text")
        encode = self.workshop.text_encoder.encode
        return np.asarray(encode(row.clip.caption), dtype=np.float32)

    def with_missing(
        self, batch: Batch, rows: Sequence[LedgerRow], has: Callable[[str], bool]
    ) -> Batch:
        """The batch with what the cache lacks of each clip.

        Args:
            batch: Some clips.
            rows: Their rows.
            has: Whether the cache has the array of a key.
        """
        return replace(
            batch,
            clips=tuple(
                replace(
                    clip,
                    to_encode=tuple(each for each in ENCODERS if not has(self.key(each, row))),
                )
                for clip, row in zip(batch.clips, rows, strict=True)
            ),
        )


def with_everything_missing(batch: Batch) -> Batch:
    """The batch as if nothing of its clips was cached."""
    return replace(batch, clips=tuple(replace(clip, to_encode=ENCODERS) for clip in batch.clips))


def check_online(config: RunConfig) -> None:
    """Refuse a text encoder that cannot work within steps.

    Raises:
        ConfigError: It sees clips, and text cascades are given captions alone.
    """
    if config.data.encode == "online" and reads_pictures(config.model):
        raise ConfigError(
            f"model.text_encoder {config.model.text_encoder!r} looks at each clip's first frame, "
            "which data.encode = 'online' does not show it; set data.encode = 'before'"
        )


def online_encoders(
    config: RunConfig,
    model: ModelShape,
    video_encoder: VideoEncoder,
    text_encoder: TextEncoder,
    device: torch.device,
) -> OnlineEncoders | None:
    """What a run encodes with within its steps, on `device`; None if it does not."""
    if config.data.encode != "online":
        return None
    resting: dict[Encoder, RestingEncoder] = {}
    if config.memory.encoders_on_host:
        resting = {
            "text": RestingEncoder(text_encoder, device),
            "vae": RestingEncoder(video_encoder, device),
        }
    workshop = workshop_of(config, video_encoder, text_encoder)
    return OnlineEncoders(workshop=workshop, model=model, resting=resting)
