"""A clip's latents and what is known of its first frame, made together and kept in one array.

So an image-to-video run encodes, caches and hands over one array a clip, as any run does. Along the
frames it holds the clip's latents, as many latents that show the first frame alone, and then the
numbers of the image's states, filled up with zeros.

Shape suffixes:
  C latent channels   F latent frames   H latent height   W latent width
  T states of the first frame   I their width   P frames of the packed array
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from arachne.core.errors import DataError
from arachne.core.families.family import AfterFirstFrame
from arachne.core.model_shape import ModelShape
from arachne.models.outer_encoder import OuterEncoder

if TYPE_CHECKING:  # it imports torch, and planning reads this file too
    from arachne.models.interface import VideoEncoder

Array = NDArray[np.float32]


class ImageEncoder(Protocol):
    """A frozen image encoder, such as CLIP's; states are float32 [T, I]."""

    @property
    def fingerprint(self) -> str:
        """Changes whenever `encode` would return other states."""
        ...

    @property
    def num_tokens(self) -> int:
        """States of an image."""
        ...

    @property
    def image_size(self) -> int:
        """Width of a state."""
        ...

    def encode(self, frame: NDArray[np.uint8]) -> Array:
        """States of one picture [H, W, 3]."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """A clip's latents [C, F, H, W], those of its first frame, and the states of that [T, I]."""

    latents: Array
    first_latents: Array
    states: Array | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How one array holds all of a clip; `packing_of` gives a model's.

    Attributes:
        image_tokens: States of the first frame; 0 for models without an image encoder.
        image_size: Width of a state.
    """

    image_tokens: int = 0
    image_size: int = 0

    def packed_shape(self, num_channels: int, grid: tuple[int, int, int]) -> tuple[int, ...]:
        """Shape [C, P, H, W] of a clip of (frames, height, width) latents."""
        frames, height, width = grid
        return num_channels, 2 * frames + self._state_frames(num_channels, height, width), *grid[1:]

    def pack(self, latents_CFHW: Array, first_CFHW: Array, states_TI: Array | None) -> Array:
        """One array [C, P, H, W]."""
        num_channels, _, height, width = latents_CFHW.shape
        numbers = np.zeros(0, np.float32) if states_TI is None else states_TI.ravel()
        num_filled = self._state_frames(num_channels, height, width) * height * width * num_channels
        assert len(numbers) == self.image_tokens * self.image_size, numbers.shape
        filled = np.pad(numbers, (0, num_filled - len(numbers)))
        states_CPHW = filled.reshape(num_channels, -1, height, width)
        return np.concatenate([latents_CFHW, first_CFHW, states_CPHW], axis=1)

    def unpack(self, packed_CPHW: Array) -> Unpacked:
        """What `pack` was given.

        Raises:
            DataError: The array is none that `pack` makes.
        """
        num_channels, num_packed, height, width = packed_CPHW.shape
        both = num_packed - self._state_frames(num_channels, height, width)
        if both < 2 or both % 2:
            raise DataError(
                f"cached latents of shape {list(packed_CPHW.shape)} hold no first frame; delete "
                "the file, and train again to encode it"
            )
        latents, first, states = np.split(packed_CPHW, [both // 2, both], axis=1)
        numbers = states.reshape(-1)[: self.image_tokens * self.image_size]
        return Unpacked(
            latents=latents,
            first_latents=first,
            states=numbers.reshape(-1, self.image_size) if self.image_tokens else None,
        )

    def _state_frames(self, num_channels: int, height: int, width: int) -> int:
        """Latent frames that the states fill."""
        return -(-self.image_tokens * self.image_size // (num_channels * height * width))


def packing_of(shape: ModelShape) -> Packing | None:
    """How a model's clips are packed; None for text to video, where nothing is."""
    if not shape.condition_channels:
        return None
    return Packing(image_tokens=shape.image_tokens, image_size=shape.image_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstFrameEncoder(OuterEncoder):
    """A video encoder whose array of a clip also holds what is known of its first frame.

    Attributes:
        image_encoder: Encodes the first frame for models that look at its states.
        is_before: What the latents that show the first frame hold after it.
    """

    image_encoder: ImageEncoder | None = None
    is_before: AfterFirstFrame = "grey"

    @property
    def packing(self) -> Packing:
        """How `encode` packs."""
        if self.image_encoder is None:
            return Packing()
        return Packing(
            image_tokens=self.image_encoder.num_tokens, image_size=self.image_encoder.image_size
        )

    @property
    def fingerprint(self) -> str:
        """Digest of both encoders."""
        of_image = f"-{self.image_encoder.fingerprint}" if self.image_encoder else ""
        before = "" if self.is_before == "grey" else f"-before-{self.is_before}"
        return f"first{before}{of_image}-{self.encoder.fingerprint}"

    def encode(self, frames: np.ndarray) -> np.ndarray:
        """The packed array [C, P, h, w] of one clip.

        Raises:
            DataError: The frames do not fit the compression.
        """
        return self.packing.pack(
            self.encoder.encode(frames),
            self.encode_first(frames[0], len(frames)),
            self.states(frames[0]),
        )

    def encode_first(self, frame: np.ndarray, num_frames: int) -> np.ndarray:
        """Latents of a clip that is `frame` first, and grey for the rest; or zeros for the rest.

        Source of the zeros: diffusers' `CogVideoXImageToVideoPipeline` and
        `HunyuanVideo15ImageToVideoPipeline`.
        """
        if self.is_before == "grey":
            return self.encoder.encode_first(frame, num_frames)
        alone_CFHW = self.encoder.encode_first(frame, 1)
        later = alone_CFHW.shape[1] - 1 + (num_frames - 1) // self.temporal_compression
        return np.pad(alone_CFHW[:, :1], ((0, 0), (0, later), (0, 0), (0, 0)))

    def states(self, frame: np.ndarray) -> np.ndarray | None:
        """The image encoder's states; None without one."""
        return None if self.image_encoder is None else self.image_encoder.encode(frame)

    def decode(self, latents: np.ndarray) -> np.ndarray:
        """Frames of one clip's latents, which are not packed."""
        return self.encoder.decode(latents)


def packed_values(encoder: VideoEncoder, grid: tuple[int, int, int]) -> int:
    """Numbers in the array that an encoder makes of a clip of so many latents."""
    if isinstance(encoder, FirstFrameEncoder):
        return prod(encoder.packing.packed_shape(encoder.latent_channels, grid))
    return encoder.latent_channels * prod(grid)
