"""Wan 2.2 TI2V-5B: Wan's class, which for image to video keeps the first latent frame.

The class takes a timestep for each token as well, which `WanPipeline` always gives it for this
model; where all are one, the result is the same.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.core.model_shape import ModelShape
from arachne.models.diffusers_family import DiffusersFamily
from arachne.models.kept_frame import with_kept_frame
from arachne.models.wan import FIXED, WAN_LAYOUT, check_wan, wan_forward, wan_options, wan_sizes

if TYPE_CHECKING:
    from torch import Tensor, nn

    from arachne.models.interface import FirstFrames


def _first_frame_forward(
    module: nn.Module,
    latents_BCFHW: Tensor,
    timestep_B: Tensor,
    text_BLD: Tensor,
    first: FirstFrames,
) -> Tensor:
    """The first latent frame as it is, at timestep 0."""
    tokens_per_frame = prod(latents_BCFHW.shape[3:]) // prod(family_named("wan_5b").geometry.patch)
    latents_BCFHW, timestep_BS = with_kept_frame(
        latents_BCFHW, timestep_B, first, tokens_per_frame=tokens_per_frame
    )
    return wan_forward(module, latents_BCFHW, timestep_BS, text_BLD)


def _check(shape: ModelShape) -> None:
    check_wan(shape)
    if shape.condition_channels or shape.image_size:
        raise ConfigError(
            f"the transformer takes {shape.condition_channels} channels beside its "
            f"{shape.latent_channels} latent ones, and family 'wan_5b' has none there; Wan 2.1 and "
            "2.2 A14B are family 'wan'"
        )


WAN_5B = DiffusersFamily(
    name="wan_5b",
    class_name="WanTransformer3DModel",
    layout=WAN_LAYOUT,
    sizes=wan_sizes,
    options=wan_options,
    forward=wan_forward,
    first_frame_forward=_first_frame_forward,
    fixed=FIXED,
    check=_check,
)
