"""A tiny transformer of every family that can be built, in float64, and inputs that do not divide.

Shape suffixes: those of `arachne.models.interface`.
"""

from dataclasses import replace
from typing import Any

import diffusers.models.embeddings  # noqa: F401  CogVideoX's rotary embedding needs it
import pytest
import torch
from torch import Tensor

from arachne.core.bucket import Bucket
from arachne.core.families import family_named
from arachne.core.model_shape import ModelShape
from arachne.models import diffusers_module
from arachne.models.diffusers_family import DiffusersFamily
from arachne.models.diffusers_module import (
    VideoTransformer,
    build_transformer,
    import_transformer,
)
from arachne.models.families import TRANSFORMERS

NUM_HEADS = 3
HEAD_SIZE = 16

for _name in TRANSFORMERS:
    import_transformer(_name)  # once, before ranks are forked


def tiny_shape(family_name: str) -> ModelShape:
    """Two blocks, and one of every further kind that the family has."""
    family = family_named(family_name)
    preset = next(iter(family.presets.values()))
    width = NUM_HEADS * HEAD_SIZE
    optional = {"num_single_layers": 1, "num_refiner_layers": 1, "pooled_text_size": 6}
    return replace(
        preset,
        num_layers=2,
        num_heads=NUM_HEADS,
        head_size=HEAD_SIZE,
        ffn_size=family.fixed_ffn_size(width) if family.fixed_ffn_size else 40,
        latent_channels=4,
        text_size=8,
        text_tokens=5,
        **{name: size for name, size in optional.items() if getattr(preset, name)},
    )


def tiny_transformer(family_name: str, dtype: torch.dtype = torch.float64) -> VideoTransformer:
    return build_transformer(tiny_shape(family_name), dtype=dtype, seed=0)


def refuse_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on transformers are made on `meta` alone, where weights take no memory."""
    made = diffusers_module.diffusers_class

    def class_of(family: DiffusersFamily) -> Any:
        def build(**options: Any) -> Any:
            assert torch.empty(0).is_meta, "a model took memory"
            return made(family)(**options)

        return build

    monkeypatch.setattr(diffusers_module, "diffusers_class", class_of)


def tiny_inputs(
    model: VideoTransformer, num_clips: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """Latents of 25 tokens a clip, which 2, 3 and 4 do not divide, noise levels, and text.

    The first clip's caption is shorter than the others', and ends in padding. A pooled state comes
    before the words, where the family has one.
    """
    geometry = family_named(model.shape.family).geometry
    width, height = geometry.side_multiple
    bucket = Bucket(width=5 * width, height=height, frames=1 + 4 * geometry.frame_step)
    assert geometry.num_tokens(bucket) == 25
    generator = torch.Generator().manual_seed(num_clips)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype)

    latents_BCFHW = normal(num_clips, model.shape.latent_channels, *geometry.latent_grid(bucket))
    sigma_B = torch.rand(num_clips, generator=generator, dtype=torch.float64).to(dtype)
    text_BLD = normal(num_clips, model.shape.text_rows, model.shape.text_size)
    text_BLD[0, model.shape.pooled_rows + 2 :] = 0.0
    return latents_BCFHW, sigma_B, text_BLD
