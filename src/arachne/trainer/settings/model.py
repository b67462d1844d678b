"""The section `[model]` of a run file."""

from dataclasses import dataclass, replace
from typing import Literal

from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.core.model_shape import ModelShape
from arachne.trainer.settings.checks import at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """`[model]`.

    Attributes:
        family: Model family.
        preset: A published shape, such as `wan-1.3b`; the keys below change it.
        pretrained: Folder of a diffusers pipeline or transformer to start from, or a safetensors
            file with a Wan in its published names; empty starts from random weights.
        num_layers, num_heads, head_size, ffn_size: Sizes; 0 keeps the preset's. A pretrained model
            brings its own; only a file does not tell `head_size`, which is 128 where it is 0.
        video_encoder: `dct` (training-free) or the folder of a diffusers autoencoder.
        text_encoder: `hashed` (training-free) or the folder of a transformers encoder with its
            tokenizer.
        text_tokens: Text tokens per clip; 0 keeps the preset's, or else 512.
        freeze: Parameters that are not trained, by patterns of their names: `*.norm*`.
        train_only: The only parameters that are trained, likewise; empty trains all.
        dtype: Weights and activations; master weights and sums are always float32 or wider.
    """

    family: str = "wan"
    preset: str = ""
    pretrained: str = ""
    num_layers: int = 0
    num_heads: int = 0
    head_size: int = 0
    ffn_size: int = 0
    video_encoder: str = "dct"
    text_encoder: str = "hashed"
    text_tokens: int = 0
    freeze: tuple[str, ...] = ()
    train_only: tuple[str, ...] = ()
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"

    def __post_init__(self) -> None:
        family = family_named(self.family)
        at_least("model", 0, most=10_000, num_layers=self.num_layers, num_heads=self.num_heads)
        at_least("model", 0, most=10_000, head_size=self.head_size)
        at_least("model", 0, most=1e6, ffn_size=self.ffn_size, text_tokens=self.text_tokens)
        if self.preset and self.preset not in family.presets:
            raise ConfigError(
                f"model.preset {self.preset!r} is not known; "
                f"presets of {self.family}: {', '.join(family.presets)}"
            )

    @property
    def num_text_tokens(self) -> int:
        """Text tokens per clip."""
        preset = family_named(self.family).presets.get(self.preset)
        return self.text_tokens or (preset.text_tokens if preset else 512)

    def shape(self, *, latent_channels: int, text_size: int) -> ModelShape:
        """The transformer's shape; channels and text width follow from the encoders.

        Raises:
            ConfigError: A size is neither given nor in the preset, or the family cannot have it.
        """
        preset = family_named(self.family).presets.get(self.preset)
        sizes: dict[str, int] = {}
        for name in ("num_layers", "num_heads", "head_size", "ffn_size"):
            size = getattr(self, name) or (getattr(preset, name) if preset else 0)
            if not size:
                raise ConfigError(f"model.{name} is missing; set it, or name a model.preset")
            sizes[name] = size
        inputs = {
            "latent_channels": latent_channels,
            "text_size": text_size,
            "text_tokens": self.num_text_tokens,
        }
        if preset is None:
            shape = ModelShape(family=self.family, **inputs, **sizes)
        else:  # it may have layers that no setting names
            shape = replace(preset, **inputs, **sizes)
        family_named(self.family).check(shape)
        return shape
