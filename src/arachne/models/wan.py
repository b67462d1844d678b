"""Wan 2.1: text-to-video transformers whose video tokens attend to themselves, then to the text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.core.model_shape import ModelShape
from arachne.core.sequence_layout import GatherOutput, SequenceLayout, SplitInput, SplitOutput
from arachne.models.diffusers_family import DiffusersFamily, Option

if TYPE_CHECKING:
    from torch import Tensor, nn

WAN_LAYOUT = SequenceLayout(
    split_inputs=(SplitInput(module="blocks.0", argument="hidden_states", stream="video", dim=1),),
    split_outputs=(SplitOutput(module="rope", stream="video", dims=(1, 1)),),
    gather=GatherOutput(module="proj_out", stream="video", dim=1),
    self_attention=r"blocks\.\d+\.attn1",
    blocks=r"blocks\.\d+",
    streams=("video",),
)

NO_IMAGE = ("image_dim", "added_kv_proj_dim", "pos_embed_seq_len")
"""Options of models that are conditioned on an image too."""


def wan_forward(
    module: nn.Module, latents_BCFHW: Tensor, timestep_B: Tensor, text_BLD: Tensor
) -> Tensor:
    """Text is not masked: published models were trained with its padding, as zeros."""
    return module(
        hidden_states=latents_BCFHW,
        timestep=timestep_B,
        encoder_hidden_states=text_BLD,
        return_dict=False,
    )[0]


def wan_options(shape: ModelShape) -> dict[str, Any]:
    """Keywords of a class with Wan's layers."""
    return {
        "patch_size": family_named(shape.family).geometry.patch,
        "num_attention_heads": shape.num_heads,
        "attention_head_dim": shape.head_size,
        "in_channels": shape.latent_channels,
        "out_channels": shape.latent_channels,
        "text_dim": shape.text_size,
        "freq_dim": shape.freq_size,
        "ffn_dim": shape.ffn_size,
        "num_layers": shape.num_layers,
    }


def wan_sizes(option: Option) -> dict[str, int]:
    """Sizes of a class with Wan's layers."""
    return {
        "num_layers": option("num_layers"),
        "num_heads": option("num_attention_heads"),
        "head_size": option("attention_head_dim"),
        "ffn_size": option("ffn_dim"),
        "latent_channels": option("in_channels"),
        "text_size": option("text_dim"),
        "freq_size": option("freq_dim"),
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


WAN = DiffusersFamily(
    name="wan",
    class_name="WanTransformer3DModel",
    layout=WAN_LAYOUT,
    sizes=wan_sizes,
    options=wan_options,
    forward=wan_forward,
    fixed=NO_IMAGE,
    check=check_wan,
)
