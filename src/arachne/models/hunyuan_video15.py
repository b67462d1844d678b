"""HunyuanVideo 1.5: text, glyph and image tokens attend together with the video.

Clips have no glyphs here, and text to video has no first frame: those tokens are zeros that nobody
sees, and the blocks carry them as in the published model. Its pipeline has glyph tokens for words
that a caption quotes; those words are told by the caption alone here. Image to video sees the first
frame in further channels, latents and a mask, and as SigLIP's states among the image tokens.
Source: `HunyuanVideo15Pipeline` and `HunyuanVideo15ImageToVideoPipeline`.

Shape suffixes: those of `diffusers_family`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.core.families.hunyuan_video15 import (
    GLYPH_SIZE,
    GLYPH_TOKENS,
    IMAGE_SIZE,
    IMAGE_TOKENS,
)
from arachne.core.model_shape import ModelShape
from arachne.models.diffusers_family import DiffusersFamily, Option
from arachne.models.hunyuan_video import (
    HUNYUAN_VIDEO,
    channels_of,
    check_head_size,
    ffn_ratio,
    ratio_sizes,
    rope_axes,
)
from arachne.models.text_padding import word_mask
from arachne.models.text_prompts import QWEN_PROMPT

if TYPE_CHECKING:
    from torch import Tensor, nn

    from arachne.models.interface import FirstFrames


def _forward(
    module: nn.Module, latents_BCFHW: Tensor, timestep_B: Tensor, text_BLD: Tensor
) -> Tensor:
    clips, channels, *grid = latents_BCFHW.shape
    return _velocity(
        module,
        latents_BCFHW,
        latents_BCFHW.new_zeros((clips, channels + 1, *grid)),
        timestep_B,
        text_BLD,
        image=text_BLD.new_zeros((clips, IMAGE_TOKENS, IMAGE_SIZE)),
    )


def _first_frame_forward(
    module: nn.Module,
    latents_BCFHW: Tensor,
    timestep_B: Tensor,
    text_BLD: Tensor,
    first: FirstFrames,
) -> Tensor:
    assert first.states is not None, "checked when the model was made"
    shown = channels_of(first)
    return _velocity(module, latents_BCFHW, shown, timestep_B, text_BLD, image=first.states)


def _velocity(
    module: nn.Module,
    latents_BCFHW: Tensor,
    shown_BCFHW: Tensor,
    timestep_B: Tensor,
    text_BLD: Tensor,
    *,
    image: Tensor,
) -> Tensor:
    """The class embeds the timestep in the type that it comes in, which has to be the weights'.

    `shown_BCFHW` are the channels of the first frame, and `image` its states [B, T, I].
    """
    import torch

    clips = len(latents_BCFHW)
    return module(
        hidden_states=torch.cat([latents_BCFHW, shown_BCFHW], dim=1),
        timestep=timestep_B.to(latents_BCFHW.dtype),
        encoder_hidden_states=text_BLD,
        encoder_attention_mask=word_mask(text_BLD),
        encoder_hidden_states_2=text_BLD.new_zeros((clips, GLYPH_TOKENS, GLYPH_SIZE)),
        encoder_attention_mask_2=text_BLD.new_zeros((clips, GLYPH_TOKENS)),
        image_embeds=image,
        return_dict=False,
    )[0]


def _prepare(module: nn.Module) -> None:
    from diffusers.models.embeddings import apply_rotary_emb

    from arachne.models.joint_attention import mask_keys

    def rotate(states_BLNH: Tensor, angles: Any) -> Tensor:
        turned: Any = apply_rotary_emb(states_BLNH, angles, sequence_dim=1)
        return turned

    mask_keys(module, patch_size=1, mask_argument="attention_mask", rotate=rotate)


def _options(shape: ModelShape) -> dict[str, Any]:
    _, patch, _ = family_named("hunyuan_video15").geometry.patch
    return {
        "patch_size": patch,
        "in_channels": 2 * shape.latent_channels + 1,
        "out_channels": shape.latent_channels,
        "num_attention_heads": shape.num_heads,
        "attention_head_dim": shape.head_size,
        "num_layers": shape.num_layers,
        "num_refiner_layers": shape.num_refiner_layers,
        "mlp_ratio": ffn_ratio(shape),
        "text_embed_dim": shape.text_size,
        "text_embed_2_dim": GLYPH_SIZE,
        "image_embed_dim": IMAGE_SIZE,
        "rope_axes_dim": rope_axes(shape),
        "task_type": "i2v" if shape.condition_channels else "t2v",
    }


def _sizes(option: Option) -> dict[str, int]:
    latent_channels = (option("in_channels") - 1) // 2
    sizes = ratio_sizes(option) | {
        "latent_channels": latent_channels,
        "num_refiner_layers": option("num_refiner_layers"),
    }
    if option("task_type") != "i2v":
        return sizes
    return sizes | {
        "condition_channels": latent_channels + 1,
        "image_size": IMAGE_SIZE,
        "image_tokens": IMAGE_TOKENS,
    }


def _check(shape: ModelShape) -> None:
    check_head_size(shape)
    needed = IMAGE_SIZE if shape.condition_channels else 0
    if shape.image_size != needed:
        raise ConfigError(
            f"model.image_encoder makes states {shape.image_size} wide, and HunyuanVideo 1.5 needs "
            f"{needed} here; name the SigLIP that the published model was trained with"
        )


HUNYUAN_VIDEO15 = DiffusersFamily(
    name="hunyuan_video15",
    class_name="HunyuanVideo15Transformer3DModel",
    pipeline_name="HunyuanVideo15Pipeline",
    layout=HUNYUAN_VIDEO.layout,
    sizes=_sizes,
    options=_options,
    forward=_forward,
    first_frame_forward=_first_frame_forward,
    prepare=_prepare,
    text_prompt=QWEN_PROMPT,
    fixed=("patch_size_t", "use_meanflow"),
    check=_check,
)
