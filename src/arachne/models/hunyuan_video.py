"""HunyuanVideo: blocks with weights for text of their own, then blocks that text and video share.

Image to video is, as in `HunyuanVideoImageToVideoPipeline`, of two kinds of weights. Those of 33
channels (`latent_concat`) see the first frame in further channels, latents before zeros and a mask.
Those of 16 (`token_replace`) keep it, see `kept_frame`: their class modulates that frame's tokens
by an embedding of timestep 0. Both were trained on text states of LLaVA, which sees that frame
before it reads the caption; see `llava_text`.

Shape suffixes: those of `diffusers_family`, and
  P width of the pooled text state
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from math import inf, nextafter
from typing import TYPE_CHECKING, Any

from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.core.model_shape import ModelShape, pooled_rows
from arachne.core.sequence_layout import SplitCount
from arachne.models.diffusers_family import (
    DiffusersFamily,
    Option,
    attention_sizes,
    check_channels,
    joint_layout,
)
from arachne.models.kept_frame import with_kept_frame
from arachne.models.text_padding import word_mask
from arachne.models.text_prompts import LLAMA_PROMPT, LLAVA_PROMPT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

    from arachne.models.interface import FirstFrames

GUIDANCE = 1000.0
"""What the guidance embedder gets, times 1000: a scale of 1, a model that is not guided. It learns
the plain velocity, and sampling guides it by comparing with the empty caption. *assumption*"""

_BLOCKS = r"(single_)?transformer_blocks\.\d+"
_LAYOUT = joint_layout(blocks=_BLOCKS, self_attention=rf"{_BLOCKS}\.attn")
_KEPT_LAYOUT = replace(
    _LAYOUT,
    split_counts=(SplitCount(modules=_BLOCKS, argument="num_tokens", stream="video"),),
)
"""A block is told how many tokens are the first frame's: they lie on the first members."""


def _forward(
    module: nn.Module,
    latents_BCFHW: Tensor,
    timestep_B: Tensor,
    text_BLD: Tensor,
) -> Tensor:
    """The text's first rows hold the pooled state; see `pooled_text`."""
    guidance = timestep_B.new_full(timestep_B.shape, GUIDANCE)
    config: Any = module.config
    num_rows = pooled_rows(config.pooled_projection_dim, text_BLD.shape[2])
    pooled_BP = text_BLD[:, :num_rows].flatten(1)[:, : config.pooled_projection_dim]
    words_BLD = text_BLD[:, num_rows:]
    return module(
        hidden_states=latents_BCFHW,
        timestep=timestep_B,
        encoder_hidden_states=words_BLD,
        encoder_attention_mask=word_mask(words_BLD),
        pooled_projections=pooled_BP,
        guidance=guidance if config.guidance_embeds else None,
        return_dict=False,
    )[0]


def _first_frame_forward(
    module: nn.Module,
    latents_BCFHW: Tensor,
    timestep_B: Tensor,
    text_BLD: Tensor,
    first: FirstFrames,
) -> Tensor:
    import torch

    config: Any = module.config
    if config.image_condition_type == "latent_concat":
        latents_BCFHW = torch.cat([latents_BCFHW, channels_of(first)], dim=1)
        return _forward(module, latents_BCFHW, timestep_B, text_BLD)
    is_picture = latents_BCFHW.shape[2] == 1
    with _as_any_token(module) if is_picture else nullcontext():
        return _forward(module, with_kept_frame(latents_BCFHW, first), timestep_B, text_BLD)


@contextmanager
def _as_any_token(module: nn.Module) -> Iterator[None]:
    """The class modulates the tokens of a first frame like all others: those of a picture."""

    def clips_own(_: nn.Module, _args: Any, embeddings: tuple[Tensor, Tensor]) -> Any:
        return embeddings[0], embeddings[0]

    handle = module.get_submodule("time_text_embed").register_forward_hook(clips_own)
    try:
        yield
    finally:
        handle.remove()


def channels_of(first: FirstFrames) -> Tensor:
    """Channels [B, C + 1, F, H, W] of first frames: their latents, and a mask of where they lie."""
    import torch

    mask_B1FHW = torch.zeros_like(first.latents[:, :1])
    mask_B1FHW[:, :, 0] = 1.0
    return torch.cat([first.latents, mask_B1FHW], dim=1)


def _options(shape: ModelShape) -> dict[str, Any]:
    _, patch, _ = family_named("hunyuan_video").geometry.patch
    return {
        "patch_size": patch,
        "in_channels": shape.input_channels,
        "out_channels": shape.latent_channels,
        "num_attention_heads": shape.num_heads,
        "attention_head_dim": shape.head_size,
        "num_layers": shape.num_layers,
        "num_single_layers": shape.num_single_layers,
        "num_refiner_layers": shape.num_refiner_layers,
        "mlp_ratio": ffn_ratio(shape),
        "text_embed_dim": shape.text_size,
        "pooled_projection_dim": shape.pooled_text_size,
        "rope_axes_dim": rope_axes(shape),
        "guidance_embeds": not shape.condition_channels,
        "image_condition_type": _condition_type(shape),
    }


def _condition_type(shape: ModelShape) -> str | None:
    if shape.condition_channels:
        return "latent_concat"
    return "token_replace" if shape.keeps_first_frame else None


def ffn_ratio(shape: ModelShape) -> float:
    """Feed-forward width over model width, such that the class, which rounds down, gets it back."""
    ratio = shape.ffn_size / shape.hidden_size
    is_exact = int(shape.hidden_size * ratio) == shape.ffn_size
    return ratio if is_exact else nextafter(ratio, inf)


def rope_axes(shape: ModelShape) -> tuple[int, int, int]:
    """Share of a head that turns with time, height and width: 16, 56 and 56 of 128, or near it."""
    side = shape.head_size * 7 // 32 * 2
    return shape.head_size - 2 * side, side, side


def _sizes(option: Option) -> dict[str, Any]:
    latent_channels = min(option("in_channels"), option("out_channels"))
    return ratio_sizes(option) | {
        "latent_channels": latent_channels,
        "condition_channels": option("in_channels") - latent_channels,
        "num_single_layers": option("num_single_layers"),
        "num_refiner_layers": option("num_refiner_layers"),
        "pooled_text_size": option("pooled_projection_dim"),
        "keeps_first_frame": option("image_condition_type") == "token_replace",
    }


def ratio_sizes(option: Option) -> dict[str, int]:
    """Sizes of a class that has the ratio of `ffn_ratio` as an option."""
    return attention_sizes(
        option,
        ffn_size=lambda hidden_size: int(hidden_size * option("mlp_ratio")),
        text_size="text_embed_dim",
    )


def check_head_size(shape: ModelShape) -> None:
    """Refuse heads that `rope_axes` cannot share out.

    Raises:
        ConfigError: Names the size.
    """
    if shape.head_size % 2 or shape.head_size < 6:
        raise ConfigError(
            f"model.head_size is {shape.head_size}; HunyuanVideo's rotary embedding of time, "
            "height and width needs an even number of at least 6"
        )


def _check(shape: ModelShape) -> None:
    check_head_size(shape)
    check_channels(shape)
    if not shape.pooled_text_size:
        raise ConfigError(
            "family 'hunyuan_video' has blocks and a pooled text state that no setting names; "
            "name a model.preset: " + ", ".join(family_named("hunyuan_video").presets)
        )


HUNYUAN_VIDEO = DiffusersFamily(
    name="hunyuan_video",
    class_name="HunyuanVideoTransformer3DModel",
    pipeline_name="HunyuanVideoPipeline",
    layout=_LAYOUT,
    sizes=_sizes,
    options=_options,
    forward=_forward,
    first_frame_forward=_first_frame_forward,
    kept_layout=_KEPT_LAYOUT,
    text_prompt=LLAMA_PROMPT,
    picture_prompt=LLAVA_PROMPT,
    fixed=("patch_size_t",),
    check=_check,
    pools_text=True,
    authors_input="img_in.proj.weight",
)
