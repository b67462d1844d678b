"""CogVideoX-2B: CogVideoX's class, which adds sines and cosines of the position to the tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from arachne.core.errors import ConfigError
from arachne.core.model_shape import ModelShape
from arachne.models.cogvideox import (
    COGVIDEOX,
    COGVIDEOX_LAYOUT,
    cogvideox_options,
    cogvideox_sizes,
    cogvideox_v,
)
from arachne.models.diffusers_family import check_channels

if TYPE_CHECKING:
    from torch import Tensor, nn


def _forward(
    module: nn.Module, latents_BCFHW: Tensor, timestep_B: Tensor, text_BLD: Tensor
) -> Tensor:
    return cogvideox_v(module, latents_BCFHW, timestep=timestep_B, text=text_BLD)


def _options(shape: ModelShape) -> dict[str, Any]:
    """The class adds nothing to words, in a table that counts on their number."""
    return cogvideox_options(shape) | {
        "use_rotary_positional_embeddings": False,
        "max_text_seq_length": shape.text_tokens,
    }


def _check(shape: ModelShape) -> None:
    check_channels(shape)
    if shape.hidden_size % 16:
        raise ConfigError(
            f"model.num_heads x head_size is {shape.hidden_size}; CogVideoX-2B's sines and cosines "
            "of time, height and width need a multiple of 16"
        )


COGVIDEOX_2B = replace(
    COGVIDEOX,
    name="cogvideox_2b",
    layout=replace(
        COGVIDEOX_LAYOUT,
        split_inputs=tuple(each for each in COGVIDEOX_LAYOUT.split_inputs if each.module),
    ),
    sizes=cogvideox_sizes,
    options=_options,
    forward=_forward,
    first_frame_forward=None,
    fixed=(
        *COGVIDEOX.fixed,
        "use_learned_positional_embeddings",
        "spatial_interpolation_scale",
        "temporal_interpolation_scale",
    ),
    check=_check,
)
