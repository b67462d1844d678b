"""LTX-2's video stream alone; its audio stream is not run, and its weights stay as they were.

What is computed is what the class gives for the video with `isolate_modalities`, whatever the audio
is: video tokens attend to themselves and to the text, and pass the feed-forwards. Left out are the
audio stream and both attentions between the streams, as in training without audio by LTX-2's own
trainer. Their weights are frozen, take memory and no time. So an exported folder is a whole LTX-2,
whose audio stream and whose attention to it are those that the run started from: pretrained ones,
or random ones that no one trained, to be sampled with `isolate_modalities` alone.

A launch's sequence is the video's, so `prepare` gives each block a forward without audio. Shape
suffixes: those of `diffusers_family`, and
  S video tokens   M modulations
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from arachne.core.errors import ConfigError
from arachne.core.model_shape import ModelShape
from arachne.core.sequence_layout import GatherOutput, SequenceLayout, SplitInput, SplitOutput
from arachne.models.diffusers_family import DiffusersFamily, Option, attention_sizes, fixed_ffn_size
from arachne.models.ltx import ltx_options
from arachne.models.text_padding import word_mask

if TYPE_CHECKING:
    from torch import Tensor, nn

FRAMES_PER_S = 24.0
"""Positions in time are seconds; the rate is diffusers' `LTX2Pipeline`'s. *assumption*: whatever
rate the clips have, they are taken to be shown at this one."""

_MASKED = -10000.0
"""What the class adds to the score of a text token that is padding."""

_LAYOUT = SequenceLayout(
    split_inputs=(
        SplitInput(module="transformer_blocks.0", argument="hidden_states", stream="video", dim=1),
    ),
    split_outputs=(SplitOutput(module="rope", stream="video", dims=(2, 2)),),
    gather=GatherOutput(module="proj_out", stream="video", dim=1),
    self_attention=r"transformer_blocks\.\d+\.attn1",
    blocks=r"transformer_blocks\.\d+",
    streams=("video",),
)

_FROZEN = ("*audio*", "av_cross_attn_*", "*.video_a2v_cross_attn_scale_shift_table")
"""Names of what belongs to the audio, or to the attentions between it and the video."""


def _forward(module: Any, latents_BCFHW: Tensor, timestep_B: Tensor, text_BLD: Tensor) -> Tensor:
    """The video half of the class's forward; every latent is a token."""
    clips, _, frames, height, width = latents_BCFHW.shape
    video_BSD = module.proj_in(latents_BCFHW.flatten(2).transpose(1, 2))
    positions = module.rope.prepare_video_coords(
        clips, frames, height, width, latents_BCFHW.device, fps=FRAMES_PER_S
    )
    angles = module.rope(positions, device=latents_BCFHW.device)
    time_BM, last_BD = module.time_embed(
        timestep_B, batch_size=clips, hidden_dtype=latents_BCFHW.dtype
    )
    words_BLD = module.caption_projection(text_BLD)
    mask_B1L = ((~word_mask(text_BLD)).to(latents_BCFHW.dtype) * _MASKED)[:, None]
    for block in module.transformer_blocks:
        video_BSD = block(video_BSD, words_BLD, time_BM[:, None], angles, mask_B1L)
    shift_BD, scale_BD = (module.scale_shift_table + last_BD[:, None]).unbind(dim=1)
    video_BSD = module.norm_out(video_BSD) * (1 + scale_BD[:, None]) + shift_BD[:, None]
    velocity_BSC = module.proj_out(video_BSD)
    return velocity_BSC.transpose(1, 2).unflatten(2, (frames, height, width))


def _video_block(
    block: Any,
    hidden_states: Tensor,
    text_BLD: Tensor,
    time_B1M: Tensor,
    angles: tuple[Tensor, Tensor],
    mask_B1L: Tensor,
) -> Tensor:
    """What a block makes of its video tokens [B, S, D], the layout's `hidden_states`."""
    modulations = block.get_mod_params(block.scale_shift_table, time_B1M, len(hidden_states))
    shift, scale, gate, ffn_shift, ffn_scale, ffn_gate = modulations
    seen = block.norm1(hidden_states) * (1 + scale) + shift
    hidden_states = hidden_states + block.attn1(seen, query_rotary_emb=angles) * gate
    hidden_states = hidden_states + block.attn2(
        block.norm2(hidden_states), encoder_hidden_states=text_BLD, attention_mask=mask_B1L
    )
    seen = block.norm3(hidden_states) * (1 + ffn_scale) + ffn_shift
    return hidden_states + block.ff(seen) * ffn_gate


def _prepare(module: nn.Module) -> None:
    blocks: Any = module.get_submodule("transformer_blocks")
    for block in blocks:
        block.forward = partial(_video_block, block)


def _options(shape: ModelShape) -> dict[str, Any]:
    return ltx_options(shape) | {
        "rope_type": "split",
        "audio_in_channels": shape.latent_channels,
        "audio_out_channels": shape.latent_channels,
        "audio_num_attention_heads": shape.num_heads,
        "audio_attention_head_dim": shape.head_size // 2,
        "audio_cross_attention_dim": shape.hidden_size // 2,
    }


def _sizes(option: Option) -> dict[str, int]:
    return attention_sizes(option, ffn_size=fixed_ffn_size("ltx2"), text_size="caption_channels")


def _check(shape: ModelShape) -> None:
    if shape.head_size % 4:
        raise ConfigError(
            f"model.head_size is {shape.head_size}; LTX-2's rotary embeddings, the audio's of half "
            "that size among them, need a multiple of 4"
        )


LTX2 = DiffusersFamily(
    name="ltx2",
    class_name="LTX2VideoTransformer3DModel",
    pipeline_name="LTX2Pipeline",
    layout=_LAYOUT,
    sizes=_sizes,
    options=_options,
    forward=_forward,
    prepare=_prepare,
    frozen=_FROZEN,
    fixed=(
        "patch_size",
        "patch_size_t",
        "gated_attn",
        "cross_attn_mod",
        "audio_gated_attn",
        "audio_cross_attn_mod",
        "use_prompt_embeddings",
        "perturbed_attn",
        "ff_bias",
        "use_keyframes_abs_pos_embedding",
        "timestep_scale_multiplier",
        "vae_scale_factors",
    ),
    check=_check,
)
