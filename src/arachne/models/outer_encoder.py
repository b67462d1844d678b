"""What video encoders that add something to another one's arrays have in common: its grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it imports torch, and planning reads this file too
    from arachne.models.interface import VideoEncoder


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterEncoder:
    """A video encoder around another one, with the latents' channels and compression of that.

    Attributes:
        encoder: Encodes clips.
    """

    encoder: VideoEncoder

    @property
    def latent_channels(self) -> int:
        """Channels of the latents."""
        return self.encoder.latent_channels

    @property
    def temporal_compression(self) -> int:
        """Frames per latent frame, the first frame apart."""
        return self.encoder.temporal_compression

    @property
    def spatial_compression(self) -> int:
        """Pixels per latent, on each side."""
        return self.encoder.spatial_compression
