"""What the trainer asks of a model and of its encoders; one file per family fills it in.

Shape suffixes:
  B batch   C latent channels   F latent frames   H latent height   W latent width
  L text tokens   D text width   T states of the first frame   I their width
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn

from arachne.core.model_shape import ModelShape
from arachne.core.sequence_layout import SequenceLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstFrames:
    """What an image-to-video model knows of its clips: their first frames.

    Attributes:
        latents: Latents [B, C, F, H, W] of clips that are grey after their first frame; where that
            frame is kept, the latents of it alone.
        states: What an image encoder makes of those frames, [B, T, I]; None for models without one.
    """

    latents: torch.Tensor
    states: torch.Tensor | None = None

    def to(self, target: torch.dtype | torch.device) -> "FirstFrames":
        """The same in another type, or on another device."""
        states = self.states
        return FirstFrames(
            latents=self.latents.to(target), states=None if states is None else states.to(target)
        )

    def repeated(self, times: int) -> "FirstFrames":
        """The same for a batch that was repeated, as guidance repeats it."""
        states = self.states
        return FirstFrames(
            latents=torch.cat([self.latents] * times),
            states=None if states is None else torch.cat([states] * times),
        )


class VideoModel(Protocol):
    """A video diffusion transformer that predicts what its objective asks for.

    For flow matching x(sigma) = (1 − sigma) · x0 + sigma · noise, and it predicts the velocity
    noise − x0. A model of DDPM gets its timestep / 1000 as sigma, and predicts v, noise or x0.
    """

    @property
    def shape(self) -> ModelShape:
        """Its sizes, as planning sees them."""
        ...

    @property
    def module(self) -> nn.Module:
        """The module that holds the parameters; the runtime hooks it as `layout` says."""
        ...

    @property
    def layout(self) -> SequenceLayout:
        """How `module` is cut along the sequence."""
        ...

    def predict(
        self,
        latents_BCFHW: torch.Tensor,
        sigma_B: torch.Tensor,
        text_BLD: torch.Tensor,
        first: FirstFrames | None = None,
    ) -> torch.Tensor:
        """The prediction at noise level `sigma_B` (0 = clean, 1 = noise), shaped like the latents.

        Every dtype may come in; the prediction has the latents' dtype. `first` is for image to
        video, and has to be given there.
        """
        ...


class VideoEncoder(Protocol):
    """A frozen autoencoder; the data room calls `encode` and keeps what it returns.

    Frames are uint8 [F, H, W, 3], latents float32 [C, f, h, w] of about unit variance.
    """

    @property
    def fingerprint(self) -> str:
        """Changes whenever `encode` would return other latents."""
        ...

    @property
    def latent_channels(self) -> int:
        """Channels of the latents."""
        ...

    @property
    def temporal_compression(self) -> int:
        """Frames per latent frame, the first frame apart."""
        ...

    @property
    def spatial_compression(self) -> int:
        """Pixels per latent, on each side."""
        ...

    def encode(self, frames: np.ndarray) -> np.ndarray:
        """Latents of one clip."""
        ...

    def encode_first(self, frame: np.ndarray, num_frames: int) -> np.ndarray:
        """Latents of a clip whose first frame is `frame` [H, W, 3], and whose others are grey."""
        ...

    def decode(self, latents: np.ndarray) -> np.ndarray:
        """Frames of one clip."""
        ...


@runtime_checkable
class TiledEncoder(VideoEncoder, Protocol):
    """An autoencoder whose tiles of one clip can be encoded apart, on different ranks.

    `encode` of a clip gives to the last bit what `join_tiles` makes of all its tiles.
    """

    @property
    def can_share(self) -> bool:
        """Whether it cuts frames at all; otherwise a clip is one tile."""
        ...

    def tile_shapes(self, num_frames: int, height: int, width: int) -> Sequence[tuple[int, ...]]:
        """Shape of what each tile of such a clip gives."""
        ...

    def encode_tile(self, frames: np.ndarray, index: int) -> np.ndarray:
        """What one tile of a clip gives, float32."""
        ...

    def join_tiles(self, frames: np.ndarray, tiles: Sequence[np.ndarray]) -> np.ndarray:
        """Latents of a clip, from what all its tiles gave."""
        ...


@runtime_checkable
class PictureReader(Protocol):
    """A text encoder that looks at a clip's first frame before it reads the caption.

    Its `encode` of a caption alone sees a black picture.
    """

    def encode_seeing(self, caption: str, frame: np.ndarray) -> np.ndarray:
        """Token states of a caption after a picture uint8 [H, W, 3]."""
        ...


class TextEncoder(Protocol):
    """A frozen text encoder; states are float32 [L, D], padded with zeros.

    Rows of a pooled state may come before them; `models.pooled_text` has those.
    """

    @property
    def fingerprint(self) -> str:
        """Changes whenever `encode` would return other states."""
        ...

    @property
    def text_size(self) -> int:
        """Width of a token state."""
        ...

    def encode(self, caption: str) -> np.ndarray:
        """Token states of one caption; the empty caption is the one that guidance compares to."""
        ...
