"""What planning has to know of a model: how pixels become tokens, and how large the layers are."""

from dataclasses import dataclass, fields
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

        Where a patch spans several frames, the first one is repeated until they fill it.

        Raises:
            ConfigError: The bucket is not legal for this geometry.
        """
        self.check(bucket)
        return (
            (bucket.frames - 1) // self.temporal_compression + self.patch[0],
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

        So latent frames fill patches but for the first one, which stands for one frame alone.
        """
        return self.temporal_compression * self.patch[0]

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
        num_layers: Transformer blocks; with `num_single_layers`, only the dual-stream ones, which
            have weights of their own for text.
        num_heads: Attention heads of a block.
        head_size: Width of one head; the model is `num_heads * head_size` wide.
        ffn_size: Inner width of the feed-forward layer.
        latent_channels: Channels of the latent that goes in and comes out.
        text_size: Width of the text encoder's token states.
        text_tokens: Text tokens that each clip carries, padding counted.
        freq_size: Width of the sinusoidal timestep embedding.
        num_single_layers: Blocks after those of `num_layers` in which text and video share weights.
        num_refiner_layers: Blocks that text tokens pass alone, before they meet the video.
        pooled_text_size: Width of the one state that sums up the whole caption; 0 without one.
        condition_channels: Channels that go in beside the latent and show the first frame to an
            image-to-video model; 0 for text to video.
        keeps_first_frame: The first latent frame goes in clean, at noise level 0, and only those
            after it are drawn: image to video without further channels.
        image_size: Width of an image encoder's states of that frame; 0 without one.
        image_tokens: How many states those are; 0 without them.
        only_bucket: The one shape of clips whose positions it learned; None takes any.
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
    num_single_layers: int = 0
    num_refiner_layers: int = 0
    pooled_text_size: int = 0
    condition_channels: int = 0
    image_size: int = 0
    image_tokens: int = 0
    keeps_first_frame: bool = False
    only_bucket: Bucket | None = None

    def __post_init__(self) -> None:
        for name in _SIZES:
            if getattr(self, name) < 1:
                raise ConfigError(f"model.{name} is {getattr(self, name)}; it must be at least 1")
        for name in _OPTIONAL_SIZES:
            if getattr(self, name) < 0:
                raise ConfigError(f"model.{name} is {getattr(self, name)}; it must be at least 0")

    @property
    def hidden_size(self) -> int:
        """Width of the model."""
        return self.num_heads * self.head_size

    @property
    def input_channels(self) -> int:
        """Channels that go in: the latent's, and those that show the first frame."""
        return self.latent_channels + self.condition_channels

    @property
    def sees_first_frame(self) -> bool:
        """Whether it is a model of image to video."""
        return self.keeps_first_frame or self.condition_channels > 0

    def check_bucket(self, bucket: Bucket) -> None:
        """Refuse a clip's shape for which the model has no positions.

        Raises:
            ConfigError: Names the one that it has.
        """
        if self.only_bucket not in (None, bucket):
            raise ConfigError(
                f"bucket {bucket}: this model learned the positions of {self.only_bucket} alone; "
                "use that"
            )

    @property
    def pooled_rows(self) -> int:
        """Rows of a caption's array that hold its pooled state, before those of its tokens."""
        return pooled_rows(self.pooled_text_size, self.text_size)

    @property
    def text_rows(self) -> int:
        """Rows of a caption's array."""
        return self.pooled_rows + self.text_tokens

    @property
    def num_blocks(self) -> int:
        """Blocks that video tokens pass."""
        return self.num_layers + self.num_single_layers


def pooled_rows(pooled_text_size: int, text_size: int) -> int:
    """Rows as wide as a token state that hold a pooled state."""
    return -(-pooled_text_size // text_size)


_OPTIONAL_SIZES = (
    "num_single_layers",
    "num_refiner_layers",
    "pooled_text_size",
    "condition_channels",
    "image_size",
    "image_tokens",
)
_SIZES = tuple(
    field.name
    for field in fields(ModelShape)
    if field.name not in ("family", "keeps_first_frame", "only_bucket", *_OPTIONAL_SIZES)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightGroup:
    """Weights that the same tokens meet in matrix products.

    Attributes:
        num_weights: Weights, each counted once.
        meets_video: Each video token of a clip meets them.
        num_other_tokens: Tokens of a clip besides its video that meet them: its text tokens, or 1
            for what is computed once per clip.
        is_split: Sequence parallelism shares these tokens out; else every rank computes them all.
    """

    num_weights: int
    meets_video: bool = False
    num_other_tokens: int = 0
    is_split: bool = False


def time_group(shape: ModelShape, num_weights: int) -> WeightGroup:
    """Weights that embed the timestep: once for a clip, or for each token where frames differ."""
    if shape.keeps_first_frame:
        return WeightGroup(num_weights=num_weights, meets_video=True, is_split=True)
    return WeightGroup(num_weights=num_weights, num_other_tokens=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopInputs:
    """What one forward pass multiplies; `cost.flops` turns it into FLOPs.

    Attributes:
        weights: All weights that matrix products use, by the tokens that meet them.
        self_attention_layers: Layers in which all video tokens attend to each other.
        joint_tokens: Tokens of a clip besides its video that take part in self-attention, and are
            shared out under sequence parallelism like them: text, in families of joint attention.
        cross_attention_layers: Layers in which video tokens look at the text tokens.
        text_attention_layers: Layers in which text tokens attend to each other alone.
        attention_size: Heads × head size.
    """

    weights: tuple[WeightGroup, ...]
    self_attention_layers: int
    joint_tokens: int = 0
    cross_attention_layers: int = 0
    text_attention_layers: int = 0
    attention_size: int

    @property
    def num_weights(self) -> int:
        """Weights that take part in matrix products, each counted once."""
        return sum(group.num_weights for group in self.weights)
