"""CogVideoX-5B: text and video tokens go through the same weights, positions are rotary.

It was trained as DDPM to predict v = sqrt(a)·noise − sqrt(1 − a)·x0, which is what `forward` gives.
Image-to-video models see their first frame in further channels. The published one also adds to its
tokens a table of positions that it learned for one shape of clips. diffusers' class refuses other
sizes and takes sines for other lengths; here clips of any other shape are rejected.

Shape suffixes: those of `diffusers_family`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arachne.core.bucket import Bucket
from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.core.model_shape import ModelShape
from arachne.core.sequence_layout import GatherOutput, SequenceLayout, SplitInput
from arachne.models.diffusers_family import (
    DiffusersFamily,
    Option,
    attention_sizes,
    check_channels,
    fixed_ffn_size,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from arachne.models.interface import FirstFrames

    Rotary = tuple[Tensor, Tensor]

COGVIDEOX_LAYOUT = SequenceLayout(
    split_inputs=(
        SplitInput(module="", argument="image_rotary_emb", stream="video", dim=0),
        SplitInput(module="transformer_blocks.0", argument="hidden_states", stream="video", dim=1),
        SplitInput(
            module="transformer_blocks.0", argument="encoder_hidden_states", stream="text", dim=1
        ),
    ),
    split_outputs=(),
    gather=GatherOutput(module="proj_out", stream="video", dim=1),
    self_attention=r"transformer_blocks\.\d+\.attn1",
    blocks=r"transformer_blocks\.\d+",
    streams=("text", "video"),
)


def _forward(
    module: nn.Module,
    latents_BCFHW: Tensor,
    timestep_B: Tensor,
    text_BLD: Tensor,
    first: FirstFrames | None = None,
) -> Tensor:
    rotary = _rotary(module.config, latents_BCFHW.shape[2:], latents_BCFHW.device)
    return cogvideox_v(
        module,
        latents_BCFHW,
        timestep=timestep_B,
        text=text_BLD,
        first=first,
        image_rotary_emb=rotary,
    )


def cogvideox_v(
    module: nn.Module,
    latents_BCFHW: Tensor,
    *,
    timestep: Tensor,
    text: Tensor,
    first: FirstFrames | None = None,
    **more: Any,
) -> Tensor:
    """The class's own v [B, C, F, H, W]: it takes and gives [B, F, C, H, W].

    It sees `first`, the latents of the first frame before zeros, as further channels.
    """
    import torch

    shown = () if first is None else (first.latents,)
    inputs_BCFHW = torch.cat([latents_BCFHW, *shown], dim=1)
    output_BFCHW = module(
        hidden_states=inputs_BCFHW.transpose(1, 2),
        encoder_hidden_states=text,
        timestep=timestep,
        return_dict=False,
        **more,
    )[0]
    return output_BFCHW.transpose(1, 2)


def _rotary(config: Any, grid: torch.Size, device: torch.device) -> Rotary:
    """Cosines and sines [tokens, head size]; the grid is fitted into the one of the training."""
    from diffusers.models.embeddings import get_3d_rotary_pos_embed

    frames, height, width = grid[0], grid[1] // config.patch_size, grid[2] // config.patch_size
    base = config.sample_height // config.patch_size, config.sample_width // config.patch_size
    scale = min(base[0] / height, base[1] / width)
    fitted = round(height * scale), round(width * scale)
    first = round((base[0] - fitted[0]) / 2), round((base[1] - fitted[1]) / 2)
    region: Any = first, (first[0] + fitted[0], first[1] + fitted[1])
    return get_3d_rotary_pos_embed(
        embed_dim=config.attention_head_dim,
        crops_coords=region,
        grid_size=(height, width),
        temporal_size=frames,
        device=device,
    )  # pyright: ignore[reportReturnType]


def cogvideox_options(shape: ModelShape) -> dict[str, Any]:
    """Keywords that all models of the class have in common."""
    _, patch, _ = family_named(shape.family).geometry.patch
    return {
        "patch_size": patch,
        "num_attention_heads": shape.num_heads,
        "attention_head_dim": shape.head_size,
        "in_channels": shape.input_channels,
        "out_channels": shape.latent_channels,
        "text_embed_dim": shape.text_size,
        "num_layers": shape.num_layers,
    }


def _options(shape: ModelShape) -> dict[str, Any]:
    options = cogvideox_options(shape) | {
        "use_rotary_positional_embeddings": True,
        "use_learned_positional_embeddings": shape.only_bucket is not None,
    }
    if shape.only_bucket is None:
        return options
    side = family_named(shape.family).geometry.spatial_compression
    return options | {
        "sample_width": shape.only_bucket.width // side,
        "sample_height": shape.only_bucket.height // side,
        "sample_frames": shape.only_bucket.frames,
        "max_text_seq_length": shape.text_tokens,  # the table begins with them
    }


def cogvideox_sizes(option: Option) -> dict[str, Any]:
    """Sizes of a model of the class; channels beyond those that come out show a first frame."""
    sizes = attention_sizes(
        option, ffn_size=fixed_ffn_size("cogvideox"), text_size="text_embed_dim"
    )
    latent_channels = min(option("in_channels"), option("out_channels"))
    return sizes | {
        "latent_channels": latent_channels,
        "condition_channels": option("in_channels") - latent_channels,
    }


def _sizes(option: Option) -> dict[str, Any]:
    if not option("use_learned_positional_embeddings"):
        return cogvideox_sizes(option)
    side = family_named("cogvideox").geometry.spatial_compression
    learned = Bucket(
        width=option("sample_width") * side,
        height=option("sample_height") * side,
        frames=option("sample_frames"),
    )
    return cogvideox_sizes(option) | {"only_bucket": learned}


def check_cogvideox(shape: ModelShape) -> None:
    """Refuse channels as `check_channels`, and heads that the rotary embedding cannot share out.

    Raises:
        ConfigError: Names the size.
    """
    check_channels(shape)
    if shape.head_size % 16:
        raise ConfigError(
            f"model.head_size is {shape.head_size}; CogVideoX's rotary embedding of time, height "
            "and width needs a multiple of 16"
        )


COGVIDEOX = DiffusersFamily(
    name="cogvideox",
    class_name="CogVideoXTransformer3DModel",
    pipeline_name="CogVideoXPipeline",
    layout=COGVIDEOX_LAYOUT,
    sizes=_sizes,
    options=_options,
    forward=_forward,
    first_frame_forward=_forward,
    text_padding="kept",
    fixed=("time_embed_dim", "patch_size_t", "ofs_embed_dim"),
    check=check_cogvideox,
)
