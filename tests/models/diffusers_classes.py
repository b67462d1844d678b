"""Diffusers' transformer of each family, built and called from a `ModelShape`, on the meta device.

A new family is one class here and one entry in `CLASSES`.
"""

from abc import ABC, abstractmethod
from contextlib import nullcontext
from math import prod
from typing import Any
from unittest.mock import patch

import diffusers
import torch
from torch import nn
from torch.fx.experimental import _config as meta_tensors

from arachne.core.families import family_named
from arachne.core.families.hunyuan_video15 import (
    GLYPH_SIZE,
    GLYPH_TOKENS,
    IMAGE_SIZE,
    IMAGE_TOKENS,
)
from arachne.core.model_shape import ModelShape
from arachne.models.ltx2 import LTX2


def empty(*sizes: int) -> torch.Tensor:
    return torch.empty(*sizes, device="meta")


def timesteps(shape: ModelShape, clips: int, num_tokens: int) -> torch.Tensor:
    """Those of the clips, or of each of their tokens where the first frame has its own."""
    return empty(clips, num_tokens) if shape.keeps_first_frame else empty(clips)


class DiffusersClass(ABC):
    """A family's class: its constructor's options, and one forward pass."""

    name: str

    @abstractmethod
    def options(self, shape: ModelShape) -> dict[str, Any]:
        """Keywords of the constructor."""

    @abstractmethod
    def inputs(self, shape: ModelShape, grid: tuple[int, int, int], clips: int) -> dict[str, Any]:
        """Keywords of the forward pass on latents of this grid."""

    def build(self, shape: ModelShape) -> nn.Module:
        with torch.device("meta"):
            return getattr(diffusers, self.name)(**self.options(shape))

    def call(
        self, module: nn.Module, shape: ModelShape, grid: tuple[int, int, int], clips: int
    ) -> None:
        self.output(module, self.inputs(shape, grid, clips))

    def output(self, module: nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        return module(**inputs, return_dict=False)[0]


class Wan(DiffusersClass):
    name = "WanTransformer3DModel"

    def options(self, shape):
        return {
            "patch_size": family_named(shape.family).geometry.patch,
            "num_attention_heads": shape.num_heads,
            "attention_head_dim": shape.head_size,
            "in_channels": shape.latent_channels + shape.condition_channels,
            "out_channels": shape.latent_channels,
            "text_dim": shape.text_size,
            "freq_dim": shape.freq_size,
            "ffn_dim": shape.ffn_size,
            "num_layers": shape.num_layers,
            "image_dim": shape.image_size or None,
            "added_kv_proj_dim": shape.hidden_size if shape.image_size else None,
        }

    def inputs(self, shape, grid, clips):
        image = empty(clips, shape.image_tokens, shape.image_size) if shape.image_size else None
        return {
            "hidden_states": empty(clips, shape.latent_channels + shape.condition_channels, *grid),
            "timestep": timesteps(shape, clips, prod(grid) // 4),
            "encoder_hidden_states": empty(clips, shape.text_tokens, shape.text_size),
            "encoder_hidden_states_image": image,
        }


class SkyReelsV2(Wan):
    name = "SkyReelsV2Transformer3DModel"


class CogVideoX(DiffusersClass):
    name = "CogVideoXTransformer3DModel"

    def options(self, shape):
        return {
            "num_attention_heads": shape.num_heads,
            "attention_head_dim": shape.head_size,
            "in_channels": shape.input_channels,
            "out_channels": shape.latent_channels,
            "text_embed_dim": shape.text_size,
            "num_layers": shape.num_layers,
            "use_rotary_positional_embeddings": True,
        }

    def inputs(self, shape, grid, clips):
        frames, height, width = grid
        num_tokens = prod(grid) // prod(family_named(shape.family).geometry.patch)
        rotary = empty(num_tokens, shape.head_size)
        return {
            "hidden_states": empty(clips, frames, shape.input_channels, height, width),
            "encoder_hidden_states": empty(clips, shape.text_tokens, shape.text_size),
            "timestep": empty(clips),
            "image_rotary_emb": (rotary, rotary),
        }


class CogVideoX2B(CogVideoX):
    def options(self, shape):
        return super().options(shape) | {
            "use_rotary_positional_embeddings": False,
            "max_text_seq_length": shape.text_tokens,
        }

    def inputs(self, shape, grid, clips):
        return super().inputs(shape, grid, clips) | {"image_rotary_emb": None}


class CogVideoX15(CogVideoX):
    def options(self, shape):
        return super().options(shape) | {
            "patch_size_t": 2,
            "ofs_embed_dim": 512 if shape.condition_channels else None,
        }

    def inputs(self, shape, grid, clips):
        offset = {"ofs": empty(clips)} if shape.condition_channels else {}
        return super().inputs(shape, grid, clips) | offset


class HunyuanVideo(DiffusersClass):
    name = "HunyuanVideoTransformer3DModel"

    def options(self, shape):
        axis = shape.head_size // 8 * 2
        return {
            "in_channels": shape.input_channels,
            "out_channels": shape.latent_channels,
            "image_condition_type": "latent_concat"
            if shape.condition_channels
            else "token_replace"
            if shape.keeps_first_frame
            else None,
            "guidance_embeds": not shape.condition_channels,
            "num_attention_heads": shape.num_heads,
            "attention_head_dim": shape.head_size,
            "num_layers": shape.num_layers,
            "num_single_layers": shape.num_single_layers,
            "num_refiner_layers": shape.num_refiner_layers,
            "mlp_ratio": shape.ffn_size / shape.hidden_size,
            "text_embed_dim": shape.text_size,
            "pooled_projection_dim": shape.pooled_text_size,
            "rope_axes_dim": (shape.head_size - 2 * axis, axis, axis),
        }

    def inputs(self, shape, grid, clips):
        return {
            "hidden_states": empty(clips, shape.input_channels, *grid),
            "timestep": empty(clips),
            "encoder_hidden_states": empty(clips, shape.text_tokens, shape.text_size),
            "encoder_attention_mask": empty(clips, shape.text_tokens),
            "pooled_projections": empty(clips, shape.pooled_text_size),
            "guidance": None if shape.condition_channels else empty(clips),
        }


class HunyuanVideo15(DiffusersClass):
    name = "HunyuanVideo15Transformer3DModel"

    def options(self, shape):
        axis = shape.head_size // 8 * 2
        return {
            "in_channels": 2 * shape.latent_channels + 1,
            "out_channels": shape.latent_channels,
            "num_attention_heads": shape.num_heads,
            "attention_head_dim": shape.head_size,
            "num_layers": shape.num_layers,
            "num_refiner_layers": shape.num_refiner_layers,
            "mlp_ratio": shape.ffn_size / shape.hidden_size,
            "text_embed_dim": shape.text_size,
            "text_embed_2_dim": GLYPH_SIZE,
            "image_embed_dim": IMAGE_SIZE,
            "rope_axes_dim": (shape.head_size - 2 * axis, axis, axis),
            "task_type": "t2v",
        }

    def inputs(self, shape, grid, clips):
        return {
            "hidden_states": empty(clips, 2 * shape.latent_channels + 1, *grid),
            "timestep": empty(clips),
            "encoder_hidden_states": empty(clips, shape.text_tokens, shape.text_size),
            "encoder_hidden_states_2": empty(clips, GLYPH_TOKENS, GLYPH_SIZE),
            "image_embeds": empty(clips, IMAGE_TOKENS, IMAGE_SIZE),
        }

    def call(self, module: Any, shape, grid, clips):
        """The class's forward without its sorting of tokens by mask, which meta tensors lack."""
        inputs = self.inputs(shape, grid, clips)
        condition = module.time_embed(inputs["timestep"])
        rotary = module.rope(inputs["hidden_states"])
        video = module.x_embedder(inputs["hidden_states"])
        text = torch.cat(
            [
                module.image_embedder(inputs["image_embeds"]),
                module.context_embedder_2(inputs["encoder_hidden_states_2"]),
                module.context_embedder(inputs["encoder_hidden_states"], inputs["timestep"]),
            ],
            dim=1,
        )
        for block in module.transformer_blocks:
            video, text = block(video, text, condition, empty(clips, text.shape[1]), rotary)
        module.proj_out(module.norm_out(video, condition))


class Ltx(DiffusersClass):
    name = "LTXVideoTransformer3DModel"

    def options(self, shape):
        return {
            "in_channels": shape.latent_channels,
            "out_channels": shape.latent_channels,
            "num_attention_heads": shape.num_heads,
            "attention_head_dim": shape.head_size,
            "cross_attention_dim": shape.hidden_size,
            "caption_channels": shape.text_size,
            "num_layers": shape.num_layers,
        }

    def inputs(self, shape, grid, clips):
        frames, height, width = grid
        return {
            "hidden_states": empty(clips, prod(grid), shape.latent_channels),
            "encoder_hidden_states": empty(clips, shape.text_tokens, shape.text_size),
            "timestep": timesteps(shape, clips, prod(grid)),
            "encoder_attention_mask": empty(clips, shape.text_tokens),
            "num_frames": frames,
            "height": height,
            "width": width,
        }


class Ltx2(DiffusersClass):
    """Without audio, as it is trained; a test of the family has the class's own forward."""

    name = "LTX2VideoTransformer3DModel"

    def options(self, shape):
        return Ltx().options(shape) | {
            "rope_type": "split",
            "audio_in_channels": shape.latent_channels,
            "audio_out_channels": shape.latent_channels,
            "audio_num_attention_heads": shape.num_heads,
            "audio_attention_head_dim": shape.head_size // 2,
            "audio_cross_attention_dim": shape.hidden_size // 2,
        }

    def inputs(self, shape, grid, clips):
        return {
            "latents": empty(clips, shape.latent_channels, *grid),
            "timestep": empty(clips),
            "text": empty(clips, shape.text_tokens, shape.text_size),
        }

    def output(self, module, inputs):
        LTX2.prepare(module)
        return LTX2.forward(module, inputs["latents"], inputs["timestep"], inputs["text"])


class Mochi(DiffusersClass):
    name = "MochiTransformer3DModel"

    def options(self, shape):
        return {
            "num_attention_heads": shape.num_heads,
            "attention_head_dim": shape.head_size,
            "num_layers": shape.num_layers,
            "pooled_projection_dim": shape.hidden_size // 2,
            "in_channels": shape.latent_channels,
            "text_embed_dim": shape.text_size,
            "time_embed_dim": shape.freq_size,
        }

    def inputs(self, shape, grid, clips):
        return {
            "hidden_states": empty(clips, shape.latent_channels, *grid),
            "encoder_hidden_states": empty(clips, shape.text_tokens, shape.text_size),
            "timestep": empty(clips),
            "encoder_attention_mask": empty(clips, shape.text_tokens),
        }

    def call(self, module, shape, grid, clips):
        """The class drops padded text by its mask; a meta tensor's mask is taken to be all ones.

        It also asks for automatic casting, which the meta device does not know.
        """
        no_casting = patch.object(torch, "autocast", lambda *_: nullcontext())
        with meta_tensors.patch(meta_nonzero_assume_all_nonzero=True), no_casting:
            super().call(module, shape, grid, clips)


CLASSES: dict[str, DiffusersClass] = {
    "wan": Wan(),
    "wan_5b": Wan(),
    "cogvideox": CogVideoX(),
    "cogvideox_2b": CogVideoX2B(),
    "cogvideox15": CogVideoX15(),
    "hunyuan_video": HunyuanVideo(),
    "hunyuan_video15": HunyuanVideo15(),
    "ltx": Ltx(),
    "ltx2": Ltx2(),
    "mochi": Mochi(),
    "skyreels_v2": SkyReelsV2(),
}
