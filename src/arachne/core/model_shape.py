"""What planning has to know of a model: how pixels become tokens, and how large the layers are."""

from dataclasses import dataclass
from math import prod

from arachne.core.bucket import Bucket
from arachne.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """How a bucket of pixels becomes a grid of tokens.

    Attributes:
        temporal_compression: Frames per latent frame, the first frame apart: k latent steps hold
            `temporal_compression * k + 1` frames.
        spatial_compression: Pixels per latent, on each side.
        patch: Latents per token as (frames, height, width).
    """

    temporal_compression: int
    spatial_compression: int
    patch: tuple[int, int, int]

    def latent_grid(self, bucket: Bucket) -> tuple[int, int, int]:
        """The latent's size as (frames, height, width).

        Raises:
            ConfigError: The bucket is not legal for this geometry.
        """
        self.check(bucket)
        return (
            (bucket.frames - 1) // self.temporal_compression + 1,
            bucket.height // self.spatial_compression,
            bucket.width // self.spatial_compression,
        )

    def token_grid(self, bucket: Bucket) -> tuple[int, int, int]:
        """The tokens of one clip as (frames, height, width)."""
        frames, height, width = self.latent_grid(bucket)
        return frames // self.patch[0], height // self.patch[1], width // self.patch[2]

    def num_tokens(self, bucket: Bucket) -> int:
        """Tokens of one clip, as attention sees them."""
        return prod(self.token_grid(bucket))

    @property
    def side_multiple(self) -> tuple[int, int]:
        """What a bucket's (width, height) must be multiples of, in pixels."""
        return (
            self.spatial_compression * self.patch[2],
            self.spatial_compression * self.patch[1],
        )

    @property
    def frame_step(self) -> int:
        """Legal frame counts are 1, 1 + frame_step, 1 + 2 frame_step, …

        Written for families whose patch does not span frames (`patch[0] == 1`); others pad.
        """
        return self.temporal_compression

    def legal_frames_up_to(self, num_frames: int) -> int:
        """The largest legal frame count that is not above `num_frames` (at least 1)."""
        return (max(num_frames, 1) - 1) // self.frame_step * self.frame_step + 1

    def check(self, bucket: Bucket) -> None:
        """Refuse a bucket that the model would crop or pad in silence.

        Raises:
            ConfigError: Names the side and the nearest legal values.
        """
        for side, size, multiple in zip(
            ("width", "height"), (bucket.width, bucket.height), self.side_multiple, strict=True
        ):
            if size % multiple:
                below = size - size % multiple
                nearest = f"{below} or {below + multiple}" if below else f"{multiple}"
                raise ConfigError(
                    f"bucket {bucket}: {side} {size} is not a multiple of {multiple}; use {nearest}"
                )
        below = self.legal_frames_up_to(bucket.frames)
        if below != bucket.frames:
            raise ConfigError(
                f"bucket {bucket}: {bucket.frames} frames are not {self.frame_step}k+1; "
                f"use {below} or {below + self.frame_step}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a diffusion transformer.

    Attributes:
        family: Name of the model family, a key of `core.families.FAMILIES`.
        num_layers: Transformer blocks.
        num_heads: Attention heads of a block.
        head_size: Width of one head; the model is `num_heads * head_size` wide.
        ffn_size: Inner width of the feed-forward layer.
        latent_channels: Channels of the latent that goes in and comes out.
        text_size: Width of the text encoder's token states.
        text_tokens: Text tokens that each clip carries, padding counted.
        freq_size: Width of the sinusoidal timestep embedding.
    """

    family: str
    num_layers: int
    num_heads: int
    head_size: int
    ffn_size: int
    latent_channels: int
    text_size: int
    text_tokens: int
    freq_size: int = 256

    def __post_init__(self) -> None:
        sizes = {
            "num_layers": self.num_layers,
            "num_heads": self.num_heads,
            "head_size": self.head_size,
            "ffn_size": self.ffn_size,
            "latent_channels": self.latent_channels,
            "text_size": self.text_size,
            "text_tokens": self.text_tokens,
            "freq_size": self.freq_size,
        }
        for name, size in sizes.items():
            if size < 1:
                raise ConfigError(f"model.{name} is {size}; it must be at least 1")

    @property
    def hidden_size(self) -> int:
        """Width of the model."""
        return self.num_heads * self.head_size


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopInputs:
    """What one forward pass multiplies; `cost.flops` turns it into FLOPs.

    Attributes:
        weights_per_token: Weights that each video token meets in matrix products.
        weights_per_text_token: Weights that each text token meets.
        weights_per_clip: Weights that each clip meets once (timestep embedding).
        self_attention_layers: Layers in which video tokens attend to all video tokens.
        cross_attention_layers: Layers in which video tokens attend to the text tokens.
        attention_size: Heads × head size.
    """

    weights_per_token: int
    weights_per_text_token: int
    weights_per_clip: int
    self_attention_layers: int
    cross_attention_layers: int
    attention_size: int
