"""The section `[model]` of a run file."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from arachne.core.errors import ConfigError
from arachne.core.families import FAMILIES, family_named
from arachne.core.known_keys import choice_text
from arachne.core.model_shape import ModelShape
from arachne.trainer.settings.checks import at_least

_KERNELS = ("auto", "cudnn", "flash", "flash3", "math")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """`[model]`.

    Attributes:
        family: Model family.
        preset: A published shape, such as `wan-1.3b`; the keys below change it.
        pretrained: Folder of a diffusers pipeline or transformer to start from, or a safetensors
            file with its authors' names, which for other families than Wan needs the preset; empty
            starts from random weights.
        other_expert: Folder of the transformer that knows the noise levels outside of
            `objective.timestep_range`, as Wan 2.2 A14B's two experts do; samples are drawn with
            both. Empty draws them with this model alone.
        num_layers, num_heads, head_size, ffn_size: Sizes; 0 keeps the preset's. A pretrained model
            brings its own; only a file does not tell `head_size`, which is 128 where it is 0.
        image_to_video: Whether the model gets the first frame of each clip, to go on from.
        image_encoder: Folder of an image encoder whose states of that frame the model attends to,
            as Wan 2.1's do; empty for models without one.
        video_encoder: `dct` (training-free) or the folder of a diffusers autoencoder. `auto` is the
            pretrained pipeline, if it holds one, and else `dct`.
        video_latents: Of a diffusers autoencoder: the `mode` of its distribution, or a `sample`,
            drawn once for each clip.
        video_tiling: Whether a diffusers autoencoder takes large frames in tiles: less memory, and
            slightly other latents.
        text_encoder: `hashed` (training-free) or the folder of a transformers encoder with its
            tokenizer. `auto` is the pretrained pipeline, if it holds one, and else `hashed`.
        text_tokens: Text tokens per clip; 0 keeps the preset's, or else 512.
        freeze: Parameters that are not trained, by patterns of their names: `*.norm*`.
        train_only: The only parameters that are trained, likewise; empty trains all.
        dtype: Weights and activations; master weights and sums are always float32 or wider.
        attention: The kernel that is asked first; what it cannot do (masks, say) the next one does.
            `auto` is cuDNN's on GPUs of the Hopper generation, where rings run FlashAttention 2
            all the same, and torch's choice elsewhere. `flash3` needs torch 2.11 and FlashAttention
            3. `diffusers:` and a name of diffusers' attention registry, as `diffusers:xformers`,
            has that backend compute self-attention, but where it is masked or a ring.
        compile: Whether blocks run compiled by `torch.compile`, once for all blocks and lengths.
    """

    family: str = "wan"
    preset: str = ""
    pretrained: str = ""
    other_expert: str = ""
    num_layers: int = 0
    num_heads: int = 0
    head_size: int = 0
    ffn_size: int = 0
    image_to_video: bool = False
    image_encoder: str = ""
    video_encoder: str = "auto"
    video_latents: Literal["mode", "sample"] = "mode"
    video_tiling: bool = False
    text_encoder: str = "auto"
    text_tokens: int = 0
    freeze: tuple[str, ...] = ()
    train_only: tuple[str, ...] = ()
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    attention: str = "auto"
    compile: bool = False

    def __post_init__(self) -> None:
        family = family_named(self.family)
        for name, part, built_in in (
            ("video_encoder", "vae", "dct"),
            ("text_encoder", "text_encoder", "hashed"),
        ):
            if getattr(self, name) == "auto":
                chosen = self.pretrained if self._may_hold(part) else built_in
                object.__setattr__(self, name, chosen)
        at_least("model", 0, most=10_000, num_layers=self.num_layers, num_heads=self.num_heads)
        at_least("model", 0, most=10_000, head_size=self.head_size)
        at_least("model", 0, most=1e6, ffn_size=self.ffn_size, text_tokens=self.text_tokens)
        if self.video_encoder == "dct" and (self.video_latents != "mode" or self.video_tiling):
            raise ConfigError(
                "model.video_latents and model.video_tiling are for a diffusers autoencoder, but "
                "model.video_encoder is 'dct'; leave them out, or name an autoencoder's folder"
            )
        if self.preset and self.preset not in family.presets:
            raise ConfigError(
                f"model.preset {self.preset!r} is none of family {self.family!r}; "
                f"{choice_text(self.preset, family.presets)}"
            )
        if self.attention not in _KERNELS and not self.attention.startswith("diffusers:"):
            raise ConfigError(
                f"unknown model.attention {self.attention!r}; "
                f"{choice_text(self.attention, (*_KERNELS, 'diffusers:NAME'))}"
            )
        if self.image_to_video and not family.has_image_to_video:
            able = [each.name for each in FAMILIES.values() if each.has_image_to_video]
            raise ConfigError(
                f"model.image_to_video is not built for family {self.family!r}; families that have "
                f"it: {', '.join(able)}"
            )
        if self.image_encoder and (not self.image_to_video or family.image_states == "never"):
            raise ConfigError(
                f"model.image_encoder is {self.image_encoder!r}, but nothing looks at images; set "
                "model.image_to_video = true in a family that does, or leave it out"
            )
        if self.image_to_video and family.image_states == "always" and not self.image_encoder:
            raise ConfigError(
                f"model.image_to_video of family {self.family!r} looks at the states of an image "
                "encoder; name its folder as model.image_encoder"
            )

    def _may_hold(self, part: str) -> bool:
        """Whether the pretrained model is a pipeline with a part; one that is not here may be."""
        folder = Path(self.pretrained)
        if not self.pretrained or folder.suffix == ".safetensors":
            return False
        return (folder / part).is_dir() or not folder.exists()

    @property
    def is_partly_frozen(self) -> bool:
        """Whether the run itself freezes parameters of the model."""
        return bool(self.freeze or self.train_only)

    @property
    def always_keeps_first_frame(self) -> bool:
        """Whether image to video keeps each clip's first latent frame, whatever the weights are."""
        return self.image_to_video and family_named(self.family).keeps_first_frame == "always"

    @property
    def num_text_tokens(self) -> int:
        """Text tokens per clip."""
        preset = family_named(self.family).presets.get(self.preset)
        return self.text_tokens or (preset.text_tokens if preset else 512)

    def shape(
        self, *, latent_channels: int, text_size: int, image_size: int = 0, image_tokens: int = 0
    ) -> ModelShape:
        """The transformer's shape; channels, and widths of text and image, are the encoders'.

        Raises:
            ConfigError: A size is neither given nor in the preset, or the family cannot have it.
        """
        preset = family_named(self.family).presets.get(self.preset)
        sizes: dict[str, Any] = {}
        for name in ("num_layers", "num_heads", "head_size", "ffn_size"):
            size = getattr(self, name) or (getattr(preset, name) if preset else 0)
            if not size:
                raise ConfigError(f"model.{name} is missing; set it, or name a model.preset")
            sizes[name] = size
        condition_channels = family_named(self.family).condition_channels
        inputs: dict[str, Any] = {
            "latent_channels": latent_channels,
            "text_size": text_size,
            "text_tokens": self.num_text_tokens,
            "image_size": image_size,
            "image_tokens": image_tokens,
        }
        if self.image_to_video and condition_channels is not None:
            inputs["condition_channels"] = condition_channels(latent_channels)
        keeps = self.always_keeps_first_frame
        if preset is None:
            shape = ModelShape(family=self.family, keeps_first_frame=keeps, **inputs, **sizes)
        else:  # it may have layers that no setting names
            shape = replace(preset, keeps_first_frame=keeps, **inputs, **sizes)
        family_named(self.family).check(shape)
        return shape
