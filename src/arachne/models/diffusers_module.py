"""Transformers of all families, with random or pretrained weights: diffusers' classes as they are.

Shape suffixes:
  B batch   C latent channels   F latent frames   H latent height   W latent width
  L text tokens   D text width
"""

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import Any

import torch
from torch import nn

from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.core.model_shape import ModelShape
from arachne.core.sequence_layout import SequenceLayout
from arachne.models.diffusers_family import DiffusersFamily
from arachne.models.families import transformer_named
from arachne.models.interface import FirstFrames
from arachne.models.lora_names import PUBLISHED
from arachne.models.pretrained_folder import loaded_part
from arachne.models.published_file import published_headers, published_shape
from arachne.models.single_file import check_values, mapped_tensors, single_file_tensors

TIMESTEP_SCALE = 1000.0
"""Families were trained on timesteps 0..1000; they embed them in floating point, untruncated."""

_EMBEDDERS = (
    "text_embedder",
    "time_embedder",
    "timestep_embedder",
    "time_embedding",
    "caption_projection",
)
"""Parts of the names of modules that embed the timestep or the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoTransformer:
    """A transformer of diffusers; `build_transformer` and `load_transformer` make one.

    Attributes:
        family: How diffusers' class is used.
        shape: Its sizes.
        module: The model itself.
        unrounded: By name, values of parameters that the module holds rounded to a narrower type.
    """

    family: DiffusersFamily
    shape: ModelShape
    module: nn.Module
    unrounded: Mapping[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])

    @property
    def layout(self) -> SequenceLayout:
        """How the module is cut along the sequence."""
        if not self.shape.keeps_first_frame:
            return self.family.layout
        assert self.family.kept_layout is not None, self.family.name
        return self.family.kept_layout

    def predict(
        self,
        latents_BCFHW: torch.Tensor,
        sigma_B: torch.Tensor,
        text_BLD: torch.Tensor,
        first: FirstFrames | None = None,
    ) -> torch.Tensor:
        """What the objective predicts, like the latents; see `interface.VideoModel.predict`."""
        assert sigma_B.shape == latents_BCFHW.shape[:1] == text_BLD.shape[:1], "one batch"
        assert (first is not None) == self.shape.sees_first_frame, "what the model was made for"
        dtype = next(self.module.parameters()).dtype
        # In half precision neighbouring timesteps would fall together.
        wide = torch.promote_types(sigma_B.dtype, torch.float32)
        inputs = (
            self.module,
            latents_BCFHW.to(dtype),
            sigma_B.to(wide) * TIMESTEP_SCALE,
            text_BLD.to(dtype),
        )
        if first is None:
            velocity_BCFHW = self.family.forward(*inputs)
        else:
            assert self.family.first_frame_forward is not None, self.family.name
            velocity_BCFHW = self.family.first_frame_forward(*inputs, first.to(dtype))
        return velocity_BCFHW.to(latents_BCFHW.dtype)


def build_transformer(shape: ModelShape, *, dtype: torch.dtype, seed: int) -> VideoTransformer:
    """A transformer with random weights, on the CPU, that depend on `shape` and `seed` alone.

    Weights are drawn in float32 from a generator of their own and then cast, so that every dtype
    starts from the same model; the global generators stay as they were.

    Raises:
        ConfigError: The family cannot be built, or not with these sizes.
    """
    family = transformer_named(shape.family)
    family_named(shape.family).check(shape)
    family.check(shape)
    with torch.random.fork_rng(devices=[]):
        module = diffusers_class(family)(**family.options(shape))
    _initialize(module, torch.Generator().manual_seed(seed))
    _cast_parameters(module, dtype)
    family.prepare(module)
    return VideoTransformer(family=family, shape=shape, module=module)


def load_transformer(
    family_name: str,
    folder: Path | str,
    *,
    dtype: torch.dtype,
    text_tokens: int,
    setting: str = "model.pretrained",
) -> VideoTransformer:
    """A transformer from a diffusers pipeline's folder, or from its `transformer` folder.

    Diffusers does not store how many text tokens most models were trained with, so `text_tokens`
    says it.

    Raises:
        ConfigError: The folder holds no such model, other weights than its own, or one that needs
            more than text.
    """
    family = transformer_named(family_name)
    found = transformer_folder(Path(folder), setting)
    options = _read_options(family, found, setting)
    shape = _shape_of(family, options, found, text_tokens, setting)
    family.check(shape)
    module = _from_folder(diffusers_class(family), found, _wide(dtype), setting)
    module.train()
    _cast_parameters(module, dtype)
    family.prepare(module)
    return VideoTransformer(family=family, shape=shape, module=module)


def load_published_transformer(
    family_name: str,
    file: Path | str,
    *,
    dtype: torch.dtype,
    text_tokens: int,
    head_size: int = 0,
) -> VideoTransformer:
    """A Wan from one safetensors file with the published names, which ComfyUI loads too.

    Args:
        family_name: A family with Wan's layers.
        file: The file.
        dtype: Of the parameters.
        text_tokens: Text tokens of a clip.
        head_size: Width of a head, which the file does not tell; 0 is that of published models.

    Raises:
        ConfigError: The file holds no such model, or other tensors than it has, or 8-bit ones.
    """
    assert family_name in PUBLISHED, family_name
    family = transformer_named(family_name)
    shape = published_shape(
        Path(file), family=family_name, text_tokens=text_tokens, head_size=head_size
    )
    family.check(shape)
    shapes = _state_shapes(family, shape)
    needed = {PUBLISHED[family_name](name): name for name in shapes}
    headers = published_headers(Path(file))
    for key in sorted(headers.keys() ^ needed.keys()):
        what = "has" if key in headers else "lacks"
        raise ConfigError(
            f"model.pretrained {str(file)!r} {what} {key!r}; training needs all of a Wan and no "
            "more; other conditions than text and a first frame are not built"
        )
    tensors = mapped_tensors(Path(file))
    found = {name: tensors[headers[key].key] for key, name in needed.items()}
    for key, name in needed.items():
        check_values(found[name], shapes[name], key, file=Path(file))
    return _filled(family, shape, found, dtype)


def load_single_file_transformer(
    shape: ModelShape, file: Path | str, *, dtype: torch.dtype
) -> VideoTransformer:
    """A transformer of a preset's sizes from one file, by diffusers' renaming; see `single_file`.

    Raises:
        ConfigError: diffusers cannot read it, or it does not fit the sizes.
    """
    family = transformer_named(shape.family)
    tensors = single_file_tensors(family, Path(file), _state_shapes(family, shape))
    return _filled(family, shape, tensors, dtype)


def _state_shapes(family: DiffusersFamily, shape: ModelShape) -> dict[str, torch.Size]:
    """What a module of these sizes holds, by name, without any memory for it."""
    with torch.device("meta"):
        module = diffusers_class(family)(**family.options(shape))
    return {name: values.shape for name, values in module.state_dict().items()}


def _filled(
    family: DiffusersFamily,
    shape: ModelShape,
    tensors: Mapping[str, torch.Tensor],
    dtype: torch.dtype,
) -> VideoTransformer:
    """A transformer with the values of all of its tensors, which fit it."""
    with torch.random.fork_rng(devices=[]):
        module = diffusers_class(family)(**family.options(shape))
    _cast_parameters(module, _wide(dtype))
    module.load_state_dict(tensors)
    module.train()
    _cast_parameters(module, dtype)
    family.prepare(module)
    return VideoTransformer(family=family, shape=shape, module=module)


def import_transformer(family_name: str) -> None:
    """Load a family's class now; a process that forks ranks does it once for all of them."""
    diffusers_class(transformer_named(family_name))


def diffusers_class(family: DiffusersFamily) -> Any:
    """Imported late: it takes seconds, and by now the settings are known to be good."""
    import diffusers

    return getattr(diffusers, family.class_name)


def pipeline_class(family: DiffusersFamily) -> Any:
    """diffusers' pipeline that makes videos of text with a family's transformer."""
    import diffusers

    return getattr(diffusers, family.pipeline_name)


def _from_folder(kind: Any, folder: Path, dtype: torch.dtype, setting: str) -> nn.Module:
    """A module with all parameters of a folder in `dtype`.

    A class names modules that it keeps in float32 whatever is asked for: against half precision,
    but it would round what was stored in float64.
    """
    unkept = type(kind.__name__, (kind,), {"_keep_in_fp32_modules": None})
    module = loaded_part(unkept, folder, setting=setting, uses_all=True, torch_dtype=dtype)
    module.__class__ = kind
    return module


def _wide(dtype: torch.dtype) -> torch.dtype:
    """What weights are read in, before they are cast to `dtype`."""
    return torch.promote_types(dtype, torch.float32)


@torch.no_grad()
def _initialize(module: nn.Module, generator: torch.Generator) -> None:
    """Draw every parameter anew, as Wan's own code does, but for the last layer.

    Source: `init_weights` of Wan 2.1 (wan/modules/model.py): Xavier-uniform matrices, zero biases,
    std 0.02 for the text and time embedders, 1/sqrt(width) for the modulation tables. It starts
    the output layer at zero; then the first step's gradient reaches that layer alone. Here it
    starts at std 0.02, small beside the target (std 1.4), and every parameter learns from step 1.
    Other families start in the same way. *assumption*
    """
    for name, parameter in module.named_parameters():
        if name.endswith("scale_shift_table"):
            parameter.normal_(0.0, 1.0 / sqrt(parameter.shape[-1]), generator=generator)
        elif parameter.dim() == 1:
            parameter.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
        elif name == "proj_out.weight" or any(part in name for part in _EMBEDDERS):
            parameter.normal_(0.0, 0.02, generator=generator)
        else:
            nn.init.xavier_uniform_(parameter.flatten(1), generator=generator)


def _cast_parameters(module: nn.Module, dtype: torch.dtype) -> None:
    """Cast parameters only: the rotary tables are buffers, and bfloat16 would ruin them."""
    for parameter in module.parameters():
        parameter.data = parameter.data.to(dtype)


def transformer_folder(folder: Path, setting: str = "model.pretrained") -> Path:
    """Where the transformer of a pipeline's folder lies: in `transformer`, or in it itself.

    Raises:
        ConfigError: There is none.
    """
    for candidate in (folder / "transformer", folder):
        if (candidate / "config.json").is_file():
            return candidate
    found = "no such folder" if not folder.is_dir() else "no config.json, and no transformer/ in it"
    raise ConfigError(
        f"{setting} {str(folder)!r}: {found}; name a diffusers pipeline or its transformer folder"
    )


def _read_options(family: DiffusersFamily, folder: Path, setting: str) -> Mapping[str, Any]:
    try:
        options = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        found = options.get("_class_name")
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"cannot read {str(folder / 'config.json')!r}: {error}") from error
    if found != family.class_name:
        raise ConfigError(
            f"{setting} {str(folder)!r} holds a {found}; family {family.name!r} needs a "
            f"{family.class_name}"
        )
    return options


def _shape_of(
    family: DiffusersFamily,
    options: Mapping[str, Any],
    folder: Path,
    text_tokens: int,
    setting: str,
) -> ModelShape:
    """The sizes in a config.json; options that it leaves out have the class's own defaults."""
    defaults = inspect.signature(diffusers_class(family).__init__).parameters

    def option(name: str) -> Any:
        return options.get(name, defaults[name].default)

    sizes = family.sizes(option)
    shape = ModelShape(family=family.name, text_tokens=text_tokens, **sizes)
    needed = {name: defaults[name].default for name in family.fixed} | family.options(shape)
    for name, value in needed.items():
        if name == "max_text_seq_length" and option(name) != value:
            raise ConfigError(
                f"{setting} {str(folder)!r} takes {option(name)} text tokens, and "
                f"model.text_tokens is {value}; set it to {option(name)}"
            )
        found, wanted = (list(each) if _is_row(each) else each for each in (option(name), value))
        if found != wanted:
            raise ConfigError(
                f"{setting} {str(folder)!r} has {name} = {found}, and training "
                f"needs {wanted}; other variants of a family are not built yet"
            )
    return shape


def _is_row(value: object) -> bool:
    return isinstance(value, (list, tuple))
