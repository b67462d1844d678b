"""Latents whose first frame is repeated, for tokens that span more frames than one: CogVideoX 1.5.

A clip's first latent frame stands for one frame alone, so that their number is odd. It is repeated
in front until they fill tokens, is noisy and counts like the others, and is dropped before
decoding. Source: diffusers' `CogVideoXPipeline`, which draws such frames and drops them.
*assumption*: it does not say what they hold; here it is what comes after them.

Shape suffixes:
  C latent channels   F latent frames   H latent height   W latent width
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from arachne.models.interface import TiledEncoder
from arachne.models.outer_encoder import OuterEncoder


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedFrameEncoder(OuterEncoder):
    """A video encoder that repeats the first latent frame; a `TiledEncoder` if `encoder` is one.

    Attributes:
        num_repeats: How often.
    """

    num_repeats: int

    @property
    def fingerprint(self) -> str:
        """The encoder's, and how often the frame is repeated."""
        return f"repeated-{self.num_repeats}-{self.encoder.fingerprint}"

    def encode(self, frames: np.ndarray) -> np.ndarray:
        """Latents [C, F, H, W] of one clip.

        Raises:
            DataError: The frames do not fit the compression.
        """
        return self._repeated(self.encoder.encode(frames))

    def encode_first(self, frame: np.ndarray, num_frames: int) -> np.ndarray:
        """Latents of a clip whose first frame is `frame` [H, W, 3], and whose others are grey."""
        return self._repeated(self.encoder.encode_first(frame, num_frames))

    def decode(self, latents: np.ndarray) -> np.ndarray:
        """Frames of one clip's latents, without those that were repeated."""
        return self.encoder.decode(latents[:, self.num_repeats :])

    @property
    def can_share(self) -> bool:
        """See `TiledEncoder`."""
        return isinstance(self.encoder, TiledEncoder) and self.encoder.can_share

    def tile_shapes(self, num_frames: int, height: int, width: int) -> Sequence[tuple[int, ...]]:
        """See `TiledEncoder`."""
        return self._tiled.tile_shapes(num_frames, height, width)

    def encode_tile(self, frames: np.ndarray, index: int) -> np.ndarray:
        """See `TiledEncoder`."""
        return self._tiled.encode_tile(frames, index)

    def join_tiles(self, frames: np.ndarray, tiles: Sequence[np.ndarray]) -> np.ndarray:
        """See `TiledEncoder`."""
        return self._repeated(self._tiled.join_tiles(frames, tiles))

    @property
    def _tiled(self) -> TiledEncoder:
        assert isinstance(self.encoder, TiledEncoder), "it can share no clip"
        return self.encoder

    def _repeated(self, latents_CFHW: np.ndarray) -> np.ndarray:
        return np.concatenate([latents_CFHW[:, :1]] * self.num_repeats + [latents_CFHW], axis=1)
