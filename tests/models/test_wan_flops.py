"""The torch-free description of Wan against diffusers' own module, on the meta device."""

from math import prod

import pytest
import torch
from diffusers import WanTransformer3DModel
from torch.utils.flop_counter import FlopCounterMode

from arachne.core.bucket import Bucket
from arachne.core.families import family_named
from arachne.core.model_shape import ModelShape
from arachne.cost.flops import forward_flops

WAN = family_named("wan")
ODD = ModelShape(
    family="wan",
    num_layers=3,
    num_heads=5,
    head_size=24,
    ffn_size=344,
    latent_channels=12,
    text_size=40,
    text_tokens=7,
    freq_size=64,
)
SHAPES = pytest.mark.parametrize("shape", [WAN.presets["wan-1.3b"], ODD], ids=["wan-1.3b", "odd"])


def meta_module(shape: ModelShape) -> WanTransformer3DModel:
    with torch.device("meta"):
        return WanTransformer3DModel(
            patch_size=WAN.geometry.patch,
            num_attention_heads=shape.num_heads,
            attention_head_dim=shape.head_size,
            in_channels=shape.latent_channels,
            out_channels=shape.latent_channels,
            text_dim=shape.text_size,
            freq_dim=shape.freq_size,
            ffn_dim=shape.ffn_size,
            num_layers=shape.num_layers,
        )


@SHAPES
def test_parameters_are_counted_exactly(shape: ModelShape):
    assert WAN.num_parameters(shape) == sum(p.numel() for p in meta_module(shape).parameters())


@SHAPES
@pytest.mark.parametrize(("bucket", "num_clips"), [("832x480x81", 1), ("160x96x17", 3)])
def test_flops_are_those_that_torch_counts(shape: ModelShape, bucket: str, num_clips: int):
    module = meta_module(shape)
    grid = WAN.geometry.latent_grid(Bucket.parse(bucket))
    num_tokens = WAN.geometry.num_tokens(Bucket.parse(bucket))
    assert num_tokens == prod(grid) // prod(WAN.geometry.patch)

    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        module(
            torch.empty(num_clips, shape.latent_channels, *grid, device="meta"),
            torch.empty(num_clips, device="meta"),
            torch.empty(num_clips, shape.text_tokens, shape.text_size, device="meta"),
        )

    counted = counter.get_total_flops()
    assert forward_flops(shape, num_tokens, num_clips) == pytest.approx(counted, rel=1e-4)
