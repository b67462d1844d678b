"""Does a file that was written make a model compute what the trained one computes?"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arachne.core.errors import DataError
from arachne.core.families import family_named
from arachne.models.diffusers_module import VideoTransformer
from arachne.models.interface import FirstFrames
from arachne.models.lora import remove_adapters
from arachne.models.lora_names import PUBLISHED

_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 0.1}
"""Error of an output over its norm that rounding may make. *Assumption*: merging two layers in
float32 made 1.5e-7; deep models may make some hundred times as much."""

_EFFECT_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-2, torch.bfloat16: 0.1}
"""Error of a LoRA's effect over its norm, where the effect is above rounding: a lost alpha, or a
lost layer, is an error of its own size."""

_PROBE_SIGMA = 0.5
_CHECK_ADAPTER = "check"


def probe_output(model: VideoTransformer) -> Tensor:
    """What the model predicts for one small fixed clip and caption, in its own type."""
    geometry = family_named(model.shape.family).geometry
    frames, height, width = geometry.patch
    grid = frames, 2 * height, 2 * width
    if model.shape.only_bucket is not None:  # the class takes no other sizes
        grid = frames, *geometry.latent_grid(model.shape.only_bucket)[1:]
    generator = torch.Generator().manual_seed(0)
    dtype = next(model.module.parameters()).dtype

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator).to(dtype)

    latents = normal(1, model.shape.latent_channels, *grid)
    text = normal(1, model.shape.text_rows, model.shape.text_size)
    first = None
    if model.shape.sees_first_frame:
        states = None
        if model.shape.image_size:
            states = normal(1, model.shape.image_tokens, model.shape.image_size)
        first = FirstFrames(latents=normal(*latents.shape), states=states)
    with torch.no_grad():
        return model.predict(latents, torch.full((1,), _PROBE_SIGMA, dtype=dtype), text, first)


def check_output(found: Tensor, needed: Tensor, dtype: torch.dtype, what: str) -> None:
    """Refuse an output that differs by more than the rounding of weights in `dtype`.

    Raises:
        DataError: It does.
    """
    error = _ratio(found.double() - needed.double(), needed)
    tolerance = max(_TOLERANCE[dtype], _TOLERANCE[found.dtype])
    if not error <= tolerance:
        raise DataError(
            f"{what} gives a model whose output differs from the trained one's by {error:.1e} of "
            f"its norm, more than rounding ({tolerance:g}); nothing was exported"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraCheck:
    """The output of a model with the adapters that it trained."""

    with_adapters: Tensor

    @classmethod
    def of(cls, model: VideoTransformer) -> "LoraCheck":
        """Take the output of a trained model."""
        return cls(with_adapters=probe_output(model))

    def check(self, model: VideoTransformer, path: Path, dtype: torch.dtype) -> None:
        """Load a LoRA file as diffusers does, and compare; the model's own adapters are removed.

        Raises:
            DataError: It does not load, or has another effect.
        """
        remove_adapters(model.module)
        without = probe_output(model)
        _load_by_diffusers(model, path)
        found = probe_output(model)
        check_output(found, self.with_adapters, dtype, repr(str(path)))
        effect = (self.with_adapters - without).double()
        rounding = _TOLERANCE[found.dtype] * without.double().norm()
        error = (found - self.with_adapters).double().norm()
        if not error <= _EFFECT_TOLERANCE[dtype] * effect.norm() + rounding:
            raise DataError(
                f"{str(path)!r} reads back as a LoRA with another effect: the difference is "
                f"{float(error / effect.norm()):.1e} of it; nothing was exported"
            )


def _load_by_diffusers(model: VideoTransformer, path: Path) -> None:
    """Load a LoRA into a plain model, with diffusers' own reading of names and alphas."""
    from diffusers.loaders import lora_pipeline

    module: Any = model.module
    options: dict[str, Any] = {"weight_name": path.name, "local_files_only": True}
    try:
        if model.family.name in PUBLISHED:
            state, metadata = lora_pipeline.WanLoraLoaderMixin.lora_state_dict(
                str(path.parent), return_lora_metadata=True, **options
            )
            module.load_lora_adapter(state, metadata=metadata, adapter_name=_CHECK_ADAPTER)
        else:
            module.load_lora_adapter(str(path.parent), adapter_name=_CHECK_ADAPTER, **options)
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        raise DataError(
            f"{str(path)!r} was written but diffusers cannot load it: {error}"
        ) from error


def _ratio(difference: Tensor, needed: Tensor) -> float:
    return float(difference.norm() / needed.double().norm())
