"""Mochi 1: joint attention of video and text, with rotary frequencies that are learned.

Its time runs from noise to clean, and it predicts x0 − noise: both are turned around here. Shape
suffixes: those of `diffusers_family`, and N heads, H head size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.core.model_shape import ModelShape
from arachne.models.diffusers_family import (
    DiffusersFamily,
    Option,
    attention_sizes,
    fixed_ffn_size,
    joint_layout,
)
from arachne.models.text_padding import word_mask

if TYPE_CHECKING:
    from torch import Tensor, nn

_LAYOUT = joint_layout(
    blocks=r"transformer_blocks\.\d+", self_attention=r"transformer_blocks\.\d+\.attn1"
)

_POOLING_HEADS = 8
"""Heads of the attention that pools the text; the class gives no choice."""


def _forward(
    module: nn.Module, latents_BCFHW: Tensor, timestep_B: Tensor, text_BLD: Tensor
) -> Tensor:
    """Timesteps 0 (noise) to 1000 (clean): `invert_sigmas` of diffusers' flow matching."""
    to_clean_BCFHW = module(
        hidden_states=latents_BCFHW,
        encoder_hidden_states=text_BLD,
        timestep=1000.0 - timestep_B,
        encoder_attention_mask=word_mask(text_BLD),
        return_dict=False,
    )[0]
    return -to_clean_BCFHW


def _prepare(module: nn.Module) -> None:
    from arachne.models.joint_attention import mask_keys

    _, height, width = family_named("mochi").geometry.patch
    mask_keys(
        module,
        patch_size=height * width,
        mask_argument="encoder_attention_mask",
        rotate=_rotate,
    )


def _rotate(states_BLNH: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Neighbouring numbers of a head are a point that turns; in float32, as the class does it."""
    cosine_LNH, sine_LNH = angles
    x, y = states_BLNH[..., 0::2].float(), states_BLNH[..., 1::2].float()
    turned = states_BLNH.new_empty(states_BLNH.shape)
    turned[..., 0::2] = (x * cosine_LNH - y * sine_LNH).to(states_BLNH.dtype)
    turned[..., 1::2] = (x * sine_LNH + y * cosine_LNH).to(states_BLNH.dtype)
    return turned


def _options(shape: ModelShape) -> dict[str, Any]:
    _, patch, _ = family_named("mochi").geometry.patch
    return {
        "patch_size": patch,
        "num_attention_heads": shape.num_heads,
        "attention_head_dim": shape.head_size,
        "num_layers": shape.num_layers,
        "pooled_projection_dim": shape.hidden_size // 2,
        "in_channels": shape.latent_channels,
        "text_embed_dim": shape.text_size,
        "time_embed_dim": shape.freq_size,
    }


def _sizes(option: Option) -> dict[str, int]:
    sizes = attention_sizes(option, ffn_size=fixed_ffn_size("mochi"), text_size="text_embed_dim")
    return sizes | {"freq_size": option("time_embed_dim")}


def _check(shape: ModelShape) -> None:
    if shape.head_size % 2:
        raise ConfigError(
            f"model.head_size is {shape.head_size}; Mochi's rotary embedding needs it even"
        )
    if shape.text_size % _POOLING_HEADS:
        raise ConfigError(
            f"the text encoder's states are {shape.text_size} wide; Mochi pools them with "
            f"{_POOLING_HEADS} heads, which has to divide it"
        )


MOCHI = DiffusersFamily(
    name="mochi",
    class_name="MochiTransformer3DModel",
    pipeline_name="MochiPipeline",
    layout=_LAYOUT,
    sizes=_sizes,
    options=_options,
    forward=_forward,
    prepare=_prepare,
    fixed=("out_channels", "qk_norm"),
    check=_check,
)
