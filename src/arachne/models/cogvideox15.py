"""CogVideoX 1.5: tokens span two latent frames; positions are counted from 0 at any size.

Image-to-video models see their first frame in further channels, and embed an offset that their
pipeline never changes. Source: `CogVideoXPipeline` and `CogVideoXImageToVideoPipeline`.

Shape suffixes: those of `diffusers_family`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.core.families.cogvideox15 import OFFSET_SIZE, cogvideox_condition_channels
from arachne.core.model_shape import ModelShape
from arachne.models.cogvideox import (
    COGVIDEOX,
    check_rotary_head,
    cogvideox_options,
    cogvideox_sizes,
    cogvideox_v,
)
from arachne.models.diffusers_family import Option

if TYPE_CHECKING:
    from torch import Tensor, nn

    from arachne.models.cogvideox import Rotary
    from arachne.models.interface import FirstFrames

_OFFSET = 2.0
"""What `CogVideoXImageToVideoPipeline` always gives the published model."""


def _forward(
    module: nn.Module, latents_BCFHW: Tensor, timestep_B: Tensor, text_BLD: Tensor
) -> Tensor:
    rotary = _rotary(module.config, latents_BCFHW)
    return cogvideox_v(
        module, latents_BCFHW, timestep=timestep_B, text=text_BLD, image_rotary_emb=rotary
    )


def _first_frame_forward(
    module: nn.Module,
    latents_BCFHW: Tensor,
    timestep_B: Tensor,
    text_BLD: Tensor,
    first: FirstFrames,
) -> Tensor:
    """Latents, and those of the first frame before zeros, as channels."""
    import torch

    return cogvideox_v(
        module,
        torch.cat([latents_BCFHW, first.latents], dim=1),
        timestep=timestep_B,
        text=text_BLD,
        image_rotary_emb=_rotary(module.config, latents_BCFHW),
        ofs=timestep_B.new_full(timestep_B.shape, _OFFSET),
    )


def _rotary(config: Any, latents_BCFHW: Tensor) -> Rotary:
    """Cosines and sines [tokens, head size].

    The pipeline cuts them out of a table of the size of the training, so that it draws none larger.
    """
    from diffusers.models.embeddings import get_3d_rotary_pos_embed

    patch = config.patch_size_t, config.patch_size, config.patch_size
    grid = [size // side for size, side in zip(latents_BCFHW.shape[2:], patch, strict=True)]
    anywhere: Any = None
    return get_3d_rotary_pos_embed(
        embed_dim=config.attention_head_dim,
        crops_coords=anywhere,
        grid_size=(grid[1], grid[2]),
        temporal_size=grid[0],
        grid_type="slice",
        max_size=(grid[1], grid[2]),
        device=latents_BCFHW.device,
    )  # pyright: ignore[reportReturnType]


def _options(shape: ModelShape) -> dict[str, Any]:
    return cogvideox_options(shape) | {
        "patch_size_t": family_named("cogvideox15").geometry.patch[0],
        "use_rotary_positional_embeddings": True,
        "ofs_embed_dim": OFFSET_SIZE if shape.condition_channels else None,
    }


def _sizes(option: Option) -> dict[str, int]:
    latent_channels = min(option("in_channels"), option("out_channels"))
    return cogvideox_sizes(option) | {
        "latent_channels": latent_channels,
        "condition_channels": option("in_channels") - latent_channels,
    }


def _check(shape: ModelShape) -> None:
    check_rotary_head(shape)
    needed = cogvideox_condition_channels(shape.latent_channels)
    if shape.condition_channels not in (0, needed):
        raise ConfigError(
            f"the transformer takes {shape.condition_channels} channels beside its "
            f"{shape.latent_channels} latent ones, and image to video has {needed} there; other "
            "conditions, such as a control video, cannot be trained"
        )


COGVIDEOX15 = replace(
    COGVIDEOX,
    name="cogvideox15",
    sizes=_sizes,
    options=_options,
    forward=_forward,
    first_frame_forward=_first_frame_forward,
    fixed=("time_embed_dim", "use_learned_positional_embeddings"),
    check=_check,
)
