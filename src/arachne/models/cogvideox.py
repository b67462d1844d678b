"""CogVideoX 1.0 with rotary embeddings (5B): text and video tokens go through the same weights.

It was trained as DDPM to predict v = sqrt(a)·noise − sqrt(1 − a)·x0, which is what `forward` gives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.core.model_shape import ModelShape
from arachne.core.sequence_layout import GatherOutput, SequenceLayout, SplitInput
from arachne.models.diffusers_family import DiffusersFamily, Option, attention_sizes, fixed_ffn_size

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

_LAYOUT = SequenceLayout(
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
    module: nn.Module, latents_BCFHW: Tensor, timestep_B: Tensor, text_BLD: Tensor
) -> Tensor:
    """The class's own v, shaped like the latents: it takes and gives [B, F, C, H, W]."""
    rotary = _rotary(module.config, latents_BCFHW.shape[2:], latents_BCFHW.device)
    output_BFCHW = module(
        hidden_states=latents_BCFHW.transpose(1, 2),
        encoder_hidden_states=text_BLD,
        timestep=timestep_B,
        image_rotary_emb=rotary,
        return_dict=False,
    )[0]
    return output_BFCHW.transpose(1, 2)


def _rotary(config: Any, grid: torch.Size, device: torch.device) -> tuple[Tensor, Tensor]:
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


def _options(shape: ModelShape) -> dict[str, Any]:
    _, patch, _ = family_named("cogvideox").geometry.patch
    return {
        "patch_size": patch,
        "num_attention_heads": shape.num_heads,
        "attention_head_dim": shape.head_size,
        "in_channels": shape.latent_channels,
        "out_channels": shape.latent_channels,
        "text_embed_dim": shape.text_size,
        "num_layers": shape.num_layers,
        "use_rotary_positional_embeddings": True,
    }


def _sizes(option: Option) -> dict[str, int]:
    return attention_sizes(option, ffn_size=fixed_ffn_size("cogvideox"), text_size="text_embed_dim")


def _check(shape: ModelShape) -> None:
    if shape.head_size % 16:
        raise ConfigError(
            f"model.head_size is {shape.head_size}; CogVideoX's rotary embedding of time, height "
            "and width needs a multiple of 16"
        )


COGVIDEOX = DiffusersFamily(
    name="cogvideox",
    class_name="CogVideoXTransformer3DModel",
    layout=_LAYOUT,
    sizes=_sizes,
    options=_options,
    forward=_forward,
    text_padding="kept",
    fixed=("time_embed_dim", "patch_size_t", "ofs_embed_dim", "use_learned_positional_embeddings"),
    check=_check,
)
