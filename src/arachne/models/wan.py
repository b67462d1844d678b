"""Wan 2.1 text-to-video transformers: diffusers' own class behind our interface.

Shape suffixes:
  B batch   C latent channels   F latent frames   H latent height   W latent width
  L text tokens   D text width
"""

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import torch
from torch import nn

from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.core.model_shape import ModelShape
from arachne.core.sequence_layout import GatherOutput, SequenceLayout, SplitInput, SplitOutput

WAN_LAYOUT = SequenceLayout(
    split_inputs=(SplitInput(module="blocks.0", argument="hidden_states", stream="video", dim=1),),
    split_outputs=(SplitOutput(module="rope", stream="video", dims=(1, 1)),),
    gather=GatherOutput(module="proj_out", stream="video", dim=1),
    self_attention=r"blocks\.\d+\.attn1",
    streams=("video",),
)

TIMESTEP_SCALE = 1000.0
"""Wan was trained on timesteps 0..1000; the class embeds them in floating point, untruncated."""

_CLASS_NAME = "WanTransformer3DModel"


@dataclass(frozen=True, slots=True, kw_only=True)
class WanModel:
    """A `WanTransformer3DModel` of diffusers; `build_wan` and `load_wan` make one."""

    shape: ModelShape
    module: nn.Module
    layout: SequenceLayout = WAN_LAYOUT

    def predict(
        self, latents_BCFHW: torch.Tensor, sigma_B: torch.Tensor, text_BLD: torch.Tensor
    ) -> torch.Tensor:
        """The velocity, shaped like the latents; see `interface.VideoModel.predict`."""
        assert sigma_B.shape == latents_BCFHW.shape[:1] == text_BLD.shape[:1], "one batch"
        dtype = next(self.module.parameters()).dtype
        # In half precision neighbouring timesteps would fall together.
        wide = torch.promote_types(sigma_B.dtype, torch.float32)
        velocity_BCFHW = self.module(
            hidden_states=latents_BCFHW.to(dtype),
            timestep=sigma_B.to(wide) * TIMESTEP_SCALE,
            encoder_hidden_states=text_BLD.to(dtype),
            return_dict=False,
        )[0]
        return velocity_BCFHW.to(latents_BCFHW.dtype)


def build_wan(shape: ModelShape, *, dtype: torch.dtype, seed: int) -> WanModel:
    """A Wan transformer with random weights, on the CPU, that depend on `shape` and `seed` alone.

    Weights are drawn in float32 from a generator of their own and then cast, so that every dtype
    starts from the same model; the global generators stay as they were.

    Raises:
        ConfigError: The rotary or timestep embedding cannot have these sizes.
    """
    _check_sizes(shape)
    with torch.random.fork_rng(devices=[]):
        module = _diffusers_class()(**_diffusers_options(shape))
    _initialize(module, torch.Generator().manual_seed(seed))
    _cast_parameters(module, dtype)
    return WanModel(shape=shape, module=module)


def load_wan(folder: Path | str, *, dtype: torch.dtype, text_tokens: int = 512) -> WanModel:
    """A Wan transformer from a diffusers pipeline's folder, or from its `transformer` folder.

    Diffusers does not store how many text tokens a model was trained with; published Wan models
    have 512.

    Raises:
        ConfigError: The folder holds no such model, or one that needs more than text.
    """
    transformer_folder = _transformer_folder(Path(folder))
    options = _read_options(transformer_folder)
    shape = _shape_of(options, transformer_folder, text_tokens)
    try:
        module = _diffusers_class().from_pretrained(
            str(transformer_folder), torch_dtype=torch.float32, local_files_only=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"model.pretrained {str(transformer_folder)!r} has a config.json, but its weights "
            f"cannot be loaded: {error}"
        ) from error
    module.train()
    _cast_parameters(module, dtype)
    return WanModel(shape=shape, module=module)


def import_wan() -> None:
    """Load diffusers now; a process that forks ranks does it once for all of them."""
    _diffusers_class()


def _diffusers_class() -> Any:
    """Imported late: it takes seconds, and by now the settings are known to be good."""
    from diffusers import WanTransformer3DModel  # pyright: ignore[reportPrivateImportUsage]

    return WanTransformer3DModel


def _check_sizes(shape: ModelShape) -> None:
    if shape.head_size % 2 or shape.head_size < 6:
        raise ConfigError(
            f"model.head_size is {shape.head_size}; Wan's rotary embedding of time, height and "
            "width needs an even number of at least 6"
        )
    if shape.freq_size % 2:
        raise ConfigError(f"model.freq_size is {shape.freq_size}; sine and cosine need it even")


def _diffusers_options(shape: ModelShape) -> dict[str, Any]:
    return {
        "patch_size": family_named("wan").geometry.patch,
        "num_attention_heads": shape.num_heads,
        "attention_head_dim": shape.head_size,
        "in_channels": shape.latent_channels,
        "out_channels": shape.latent_channels,
        "text_dim": shape.text_size,
        "freq_dim": shape.freq_size,
        "ffn_dim": shape.ffn_size,
        "num_layers": shape.num_layers,
    }


@torch.no_grad()
def _initialize(module: nn.Module, generator: torch.Generator) -> None:
    """Draw every parameter anew, as Wan's own code does, but for the last layer.

    Source: `init_weights` of Wan 2.1 (wan/modules/model.py): Xavier-uniform matrices, zero biases,
    std 0.02 for the text and time embedders, 1/sqrt(width) for the modulation tables. It starts
    the output layer at zero; then the first step's gradient reaches that layer alone. Here it
    starts at std 0.02, small beside the target (std 1.4), and every parameter learns from step 1.
    """
    for name, parameter in module.named_parameters():
        if name.endswith("scale_shift_table"):
            parameter.normal_(0.0, 1.0 / sqrt(parameter.shape[-1]), generator=generator)
        elif parameter.dim() == 1:
            parameter.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
        elif "text_embedder" in name or "time_embedder" in name or name == "proj_out.weight":
            parameter.normal_(0.0, 0.02, generator=generator)
        else:
            nn.init.xavier_uniform_(parameter.flatten(1), generator=generator)


def _cast_parameters(module: nn.Module, dtype: torch.dtype) -> None:
    """Cast parameters only: the rotary tables are buffers, and bfloat16 would ruin them."""
    for parameter in module.parameters():
        parameter.data = parameter.data.to(dtype)


def _transformer_folder(folder: Path) -> Path:
    for candidate in (folder / "transformer", folder):
        if (candidate / "config.json").is_file():
            return candidate
    found = "no such folder" if not folder.is_dir() else "no config.json, and no transformer/ in it"
    raise ConfigError(
        f"model.pretrained {str(folder)!r}: {found}; name a diffusers pipeline or its transformer "
        "folder"
    )


def _read_options(folder: Path) -> Mapping[str, Any]:
    try:
        options = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        found = options.get("_class_name")
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"cannot read {str(folder / 'config.json')!r}: {error}") from error
    if found != _CLASS_NAME:
        raise ConfigError(
            f"model.pretrained {str(folder)!r} holds a {found}; family 'wan' needs a {_CLASS_NAME}"
        )
    return options


def _shape_of(options: Mapping[str, Any], folder: Path, text_tokens: int) -> ModelShape:
    """The sizes in a config.json; options that it leaves out have the class's own defaults."""
    defaults = inspect.signature(_diffusers_class().__init__).parameters

    def option(name: str) -> Any:
        return options.get(name, defaults[name].default)

    patch = family_named("wan").geometry.patch
    needed = {"image_dim": None, "added_kv_proj_dim": None, "pos_embed_seq_len": None}
    needed |= {"patch_size": list(patch), "out_channels": option("in_channels")}
    for name, value in needed.items():
        found = list(option(name)) if name == "patch_size" else option(name)
        if found != value:
            raise ConfigError(
                f"model.pretrained {str(folder)!r} has {name} = {found}, and text-to-video "
                f"training needs {value}; models that are conditioned on images are not built yet"
            )
    return ModelShape(
        family="wan",
        num_layers=option("num_layers"),
        num_heads=option("num_attention_heads"),
        head_size=option("attention_head_dim"),
        ffn_size=option("ffn_dim"),
        latent_channels=option("in_channels"),
        text_size=option("text_dim"),
        text_tokens=text_tokens,
        freq_size=option("freq_dim"),
    )
