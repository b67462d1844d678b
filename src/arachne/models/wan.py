"""Wan 2.1, and either expert of Wan 2.2 A14B: tokens attend to themselves, then to the text.

Image-to-video models see their first frame in further channels of each latent, and may attend to an
image encoder's states of it beside the text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.core.families.wan import WAN_IMAGE_TOKENS
from arachne.core.model_shape import ModelShape
from arachne.core.sequence_layout import GatherOutput, SequenceLayout, SplitInput, SplitOutput
from arachne.models.diffusers_family import DiffusersFamily, Option, check_channels

if TYPE_CHECKING:
    from torch import Tensor, nn

    from arachne.models.interface import FirstFrames

WAN_LAYOUT = SequenceLayout(
    split_inputs=(SplitInput(module="blocks.0", argument="hidden_states", stream="video", dim=1),),
    split_outputs=(SplitOutput(module="rope", stream="video", dims=(1, 1)),),
    gather=GatherOutput(module="proj_out", stream="video", dim=1),
    self_attention=r"blocks\.\d+\.attn1",
    blocks=r"blocks\.\d+",
    streams=("video",),
)

FIXED = ("pos_embed_seq_len",)
"""An option of models that are conditioned on two images."""

_TEXT_TOKENS_BESIDE_IMAGE = 512
"""Of models that attend to an image too: diffusers' class counts on it."""


def wan_forward(
    module: nn.Module, latents_BCFHW: Tensor, timestep: Tensor, text_BLD: Tensor
) -> Tensor:
    """Text is not masked: published models were trained with its padding, as zeros.

    `timestep` is [B], or that of each token [B, S] in Wan 2.2 TI2V-5B.
    """
    return module(
        hidden_states=latents_BCFHW,
        timestep=timestep,
        encoder_hidden_states=text_BLD,
        return_dict=False,
    )[0]


def wan_first_frame_forward(
    module: nn.Module,
    latents_BCFHW: Tensor,
    timestep_B: Tensor,
    text_BLD: Tensor,
    first: FirstFrames,
) -> Tensor:
    """Latents, the mask of the first frame, and the latents that show it, as channels.

    The mask has a channel for each frame of a latent frame. The first latent frame is one frame
    alone, which counts for all of its channels. Source: `WanImageToVideoPipeline`.
    """
    import torch

    step = family_named("wan").geometry.temporal_compression
    mask_BMFHW = torch.zeros_like(latents_BCFHW[:, :1]).repeat(1, step, 1, 1, 1)
    mask_BMFHW[:, :, 0] = 1.0
    return module(
        hidden_states=torch.cat([latents_BCFHW, mask_BMFHW, first.latents], dim=1),
        timestep=timestep_B,
        encoder_hidden_states=text_BLD,
        encoder_hidden_states_image=first.states,
        return_dict=False,
    )[0]


def wan_options(shape: ModelShape) -> dict[str, Any]:
    """Keywords of a class with Wan's layers."""
    return {
        "patch_size": family_named(shape.family).geometry.patch,
        "num_attention_heads": shape.num_heads,
        "attention_head_dim": shape.head_size,
        "in_channels": shape.input_channels,
        "out_channels": shape.latent_channels,
        "text_dim": shape.text_size,
        "freq_dim": shape.freq_size,
        "ffn_dim": shape.ffn_size,
        "num_layers": shape.num_layers,
        "image_dim": shape.image_size or None,
        "added_kv_proj_dim": shape.hidden_size if shape.image_size else None,
    }


def wan_sizes(option: Option) -> dict[str, int]:
    """Sizes of a class with Wan's layers."""
    latent_channels = min(option("in_channels"), option("out_channels"))
    image_size = option("image_dim") or 0
    return {
        "num_layers": option("num_layers"),
        "num_heads": option("num_attention_heads"),
        "head_size": option("attention_head_dim"),
        "ffn_size": option("ffn_dim"),
        "latent_channels": latent_channels,
        "text_size": option("text_dim"),
        "freq_size": option("freq_dim"),
        "condition_channels": option("in_channels") - latent_channels,
        "image_size": image_size,
        "image_tokens": WAN_IMAGE_TOKENS if image_size else 0,
    }


def check_wan(shape: ModelShape) -> None:
    """Refuse sizes that the embeddings cannot have.

    Raises:
        ConfigError: Names the size.
    """
    if shape.head_size % 2 or shape.head_size < 6:
        raise ConfigError(
            f"model.head_size is {shape.head_size}; Wan's rotary embedding of time, height and "
            "width needs an even number of at least 6"
        )
    if shape.freq_size % 2:
        raise ConfigError(f"model.freq_size is {shape.freq_size}; sine and cosine need it even")
    check_channels(shape)
    if shape.image_size and shape.text_tokens != _TEXT_TOKENS_BESIDE_IMAGE:
        raise ConfigError(
            f"model.text_tokens is {shape.text_tokens}; a {shape.family} that attends to its first "
            f"frame's image states needs {_TEXT_TOKENS_BESIDE_IMAGE}"
        )


WAN = DiffusersFamily(
    name="wan",
    class_name="WanTransformer3DModel",
    pipeline_name="WanPipeline",
    layout=WAN_LAYOUT,
    sizes=wan_sizes,
    options=wan_options,
    forward=wan_forward,
    first_frame_forward=wan_first_frame_forward,
    cleans_captions=True,
    fixed=FIXED,
    check=check_wan,
)
