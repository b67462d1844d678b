"""LTX-Video: takes tokens instead of a grid of latents; its video tokens look at the text.

For image to video it keeps the first latent frame; see `kept_frame`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.core.model_shape import ModelShape
from arachne.core.sequence_layout import GatherOutput, SequenceLayout, SplitInput, SplitOutput
from arachne.models.diffusers_family import DiffusersFamily, Option, attention_sizes, fixed_ffn_size
from arachne.models.kept_frame import keeping_first_frame, token_times
from arachne.models.text_padding import word_mask

if TYPE_CHECKING:
    from torch import Tensor, nn

FRAMES_PER_S = 25.0
"""Positions in time are seconds; the rate is diffusers' `LTXPipeline`'s. *assumption*: whatever
rate the clips have, they are taken to be shown at this one."""

_LAYOUT = SequenceLayout(
    split_inputs=(
        SplitInput(module="transformer_blocks.0", argument="hidden_states", stream="video", dim=1),
    ),
    split_outputs=(SplitOutput(module="rope", stream="video", dims=(1, 1)),),
    gather=GatherOutput(module="proj_out", stream="video", dim=1),
    self_attention=r"transformer_blocks\.\d+\.attn1",
    blocks=r"transformer_blocks\.\d+",
    streams=("video",),
)


def _forward(
    module: nn.Module, latents_BCFHW: Tensor, timestep: Tensor, text_BLD: Tensor
) -> Tensor:
    """Every latent is a token: [B, C, F, H, W] becomes [B, F·H·W, C], and back.

    `timestep` is [B], or that of each token [B, F·H·W].
    """
    geometry = family_named("ltx").geometry
    frames, height, width = latents_BCFHW.shape[2:]
    side = geometry.spatial_compression
    velocity = module(
        hidden_states=latents_BCFHW.flatten(2).transpose(1, 2),
        encoder_hidden_states=text_BLD,
        timestep=timestep,
        encoder_attention_mask=word_mask(text_BLD),
        num_frames=frames,
        height=height,
        width=width,
        rope_interpolation_scale=(geometry.temporal_compression / FRAMES_PER_S, side, side),
        return_dict=False,
    )[0]
    return velocity.transpose(1, 2).unflatten(2, (frames, height, width))


def ltx_options(shape: ModelShape) -> dict[str, Any]:
    """What LTX-2 takes too."""
    return {
        "in_channels": shape.latent_channels,
        "out_channels": shape.latent_channels,
        "num_attention_heads": shape.num_heads,
        "attention_head_dim": shape.head_size,
        "cross_attention_dim": shape.hidden_size,
        "caption_channels": shape.text_size,
        "num_layers": shape.num_layers,
    }


def _sizes(option: Option) -> dict[str, int]:
    return attention_sizes(option, ffn_size=fixed_ffn_size("ltx"), text_size="caption_channels")


def _check(shape: ModelShape) -> None:
    if shape.hidden_size % 2:
        raise ConfigError(
            f"model.num_heads x head_size is {shape.hidden_size}; LTX's rotary embedding needs it "
            "even"
        )


LTX = DiffusersFamily(
    name="ltx",
    class_name="LTXVideoTransformer3DModel",
    pipeline_name="LTXPipeline",
    layout=_LAYOUT,
    kept_layout=token_times(_LAYOUT),
    sizes=_sizes,
    options=ltx_options,
    forward=_forward,
    first_frame_forward=keeping_first_frame(_forward, "ltx"),
    text_padding="seen",
    fixed=("patch_size", "patch_size_t"),
    check=_check,
)
