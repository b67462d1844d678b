"""The torch-free description of the encoders against the real classes, on the meta device."""

from collections.abc import Callable
from functools import cache
from typing import Any

import diffusers
import pytest
import torch
import transformers
from diffusers.pipelines.ltx2.connectors import LTX2TextConnectors
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLTextModel

from arachne.core.bucket import Bucket
from arachne.core.encoder_shape import TextEncoderShape, VideoEncoderShape
from arachne.core.families import FAMILIES
from arachne.cost.encoder_work import (
    text_encoder_elements,
    text_encoder_flops,
    video_encoder_elements,
    video_encoder_flops,
)

VIDEO_ENCODERS = {family.video_encoder.name: family.video_encoder for family in FAMILIES.values()}
TEXT_ENCODERS = {
    f"{encoder.name} x{encoder.num_tokens}": encoder
    for family in FAMILIES.values()
    for encoder in family.text_encoders
}


class GemmaWithConnectors(nn.Module):
    """Gemma's language model, and what LTX-2 makes of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.gemma = transformers.Gemma3TextModel(
            transformers.Gemma3TextConfig(
                hidden_size=3840,
                intermediate_size=15360,
                num_hidden_layers=48,
                num_attention_heads=16,
                num_key_value_heads=8,
                head_dim=256,
                vocab_size=262208,
            )
        )
        self.connectors = LTX2TextConnectors()

    def forward(self, input_ids: torch.Tensor) -> None:
        layers = self.gemma(input_ids=input_ids, output_hidden_states=True).hidden_states
        self.connectors(torch.stack(layers, dim=-1), torch.ones_like(input_ids))


T5_XXL = {"d_model": 4096, "d_kv": 64, "d_ff": 10240, "num_layers": 24, "num_heads": 64}
GATED = {"feed_forward_proj": "gated-gelu"}
TEXT_CLASSES: dict[str, Callable[[], nn.Module]] = {
    "T5-XXL": lambda: transformers.T5EncoderModel(
        transformers.T5Config(**T5_XXL, **GATED, vocab_size=32128)
    ),
    "UMT5-XXL": lambda: transformers.UMT5EncoderModel(
        transformers.UMT5Config(**T5_XXL, **GATED, vocab_size=256384)
    ),
    "ByT5-small": lambda: transformers.T5EncoderModel(
        transformers.T5Config(
            d_model=1472, d_kv=64, d_ff=3584, num_layers=12, num_heads=6, **GATED, vocab_size=384
        )
    ),
    "Llama-3-8B": lambda: transformers.LlamaModel(
        transformers.LlamaConfig(
            hidden_size=4096,
            intermediate_size=14336,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=8,
            vocab_size=128256,
        )
    ),
    "Gemma-3-12B and LTX-2's connectors": lambda: GemmaWithConnectors(),
    "CLIP-L text": lambda: transformers.CLIPTextModel(
        transformers.CLIPTextConfig(
            hidden_size=768,
            intermediate_size=3072,
            num_hidden_layers=12,
            num_attention_heads=12,
            vocab_size=49408,
        )
    ),
    "Qwen2.5-VL-7B": lambda: Qwen2_5_VLTextModel(
        Qwen2_5_VLTextConfig(
            hidden_size=3584,
            intermediate_size=18944,
            num_hidden_layers=28,
            num_attention_heads=28,
            num_key_value_heads=4,
            vocab_size=152064,
        )
    ),
}


class PeakElements(TorchDispatchMode):
    """Counts the float32 numbers of all storages that are alive at one moment, at the most."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.weights = {p.untyped_storage()._cdata for p in module.parameters()}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.weights:
                    self.alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes() // 4)
        self.alive = {key: one for key, one in self.alive.items() if not one[0].expired()}
        self.peak = max(self.peak, sum(elements for _, elements in self.alive.values()))
        return result


NOT_DEFAULT: dict[str, dict[str, Any]] = {
    "AutoencoderKLWan of 2.2": {
        "base_dim": 160,
        "decoder_base_dim": 256,
        "z_dim": 48,
        "is_residual": True,
        "in_channels": 12,
        "out_channels": 12,
        "patch_size": 2,
        "scale_factor_spatial": 16,
    }
}


@cache
def meta_autoencoder(name: str) -> Any:
    with torch.device("meta"):
        return getattr(diffusers, name.split()[0])(**NOT_DEFAULT.get(name, {})).eval()


@cache
def meta_text_encoder(name: str) -> nn.Module:
    with torch.device("meta"):
        return TEXT_CLASSES[name]().eval()


def pixels(bucket: Bucket) -> torch.Tensor:
    return torch.empty(1, 3, bucket.frames, bucket.height, bucket.width, device="meta")


def bucket_of(encoder: VideoEncoderShape, size: str, later_latents: int) -> Bucket:
    return Bucket.parse(f"{size}x{later_latents * encoder.temporal_compression + 1}")


video_encoders = pytest.mark.parametrize(
    "encoder", list(VIDEO_ENCODERS.values()), ids=list(VIDEO_ENCODERS)
)
text_encoders = pytest.mark.parametrize(
    "encoder", list(TEXT_ENCODERS.values()), ids=list(TEXT_ENCODERS)
)


@video_encoders
def test_parameters_of_autoencoders_are_exact(encoder: VideoEncoderShape):
    module = meta_autoencoder(encoder.name)
    assert encoder.num_parameters == sum(p.numel() for p in module.parameters())


@video_encoders
@pytest.mark.parametrize(("size", "later_latents"), [("832x480", 0), ("512x512", 5)])
def test_flops_of_encoding_a_clip_are_those_that_torch_counts(
    encoder: VideoEncoderShape, size: str, later_latents: int
):
    bucket = bucket_of(encoder, size, later_latents)
    module = meta_autoencoder(encoder.name)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        module.encode(pixels(bucket))
    assert video_encoder_flops(encoder, bucket) == pytest.approx(
        counter.get_total_flops(), rel=0.01
    )


@video_encoders
@pytest.mark.parametrize(
    ("size", "later_latents"), [("832x480", 0), ("512x512", 6), ("1024x1024", 4)]
)
def test_memory_of_encoding_a_clip_is_what_torch_holds_or_a_little_more(
    encoder: VideoEncoderShape, size: str, later_latents: int
):
    bucket = bucket_of(encoder, size, later_latents)
    module = meta_autoencoder(encoder.name)
    counter = PeakElements(module)
    with counter, torch.no_grad():
        module.encode(pixels(bucket))
    assert 0.97 <= video_encoder_elements(encoder, bucket) / counter.peak <= 1.5


@text_encoders
def test_text_encoders_have_the_parameters_and_flops_that_torch_counts(encoder: TextEncoderShape):
    module = meta_text_encoder(encoder.name)
    ids = torch.zeros(1, encoder.num_tokens, dtype=torch.long, device="meta")
    flops, peak = FlopCounterMode(display=False), PeakElements(module)
    with flops, torch.no_grad():
        module(input_ids=ids)
    with peak, torch.no_grad():
        module(input_ids=ids)

    assert encoder.num_parameters == sum(p.numel() for p in module.parameters())
    assert text_encoder_flops(encoder) == pytest.approx(flops.get_total_flops(), rel=0.01)
    assert 1.0 <= text_encoder_elements(encoder) / peak.peak <= 3.0
