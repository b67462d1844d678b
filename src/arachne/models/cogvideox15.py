"""CogVideoX 1.5: tokens span two latent frames; positions are counted from 0 at any size.

Image-to-video models also embed an offset that their pipeline never changes. Source:
`CogVideoXPipeline` and `CogVideoXImageToVideoPipeline`.

Shape suffixes: those of `diffusers_family`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from arachne.core.families import family_named
from arachne.core.families.cogvideox15 import OFFSET_SIZE
from arachne.core.model_shape import ModelShape
from arachne.models.cogvideox import (
    COGVIDEOX,
    cogvideox_options,
    cogvideox_sizes,
    cogvideox_v,
)

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
    return cogvideox_v(
        module,
        latents_BCFHW,
        timestep=timestep_B,
        text=text_BLD,
        first=first,
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


COGVIDEOX15 = replace(
    COGVIDEOX,
    name="cogvideox15",
    sizes=cogvideox_sizes,
    options=_options,
    forward=_forward,
    first_frame_forward=_first_frame_forward,
    fixed=("time_embed_dim", "use_learned_positional_embeddings"),
)
