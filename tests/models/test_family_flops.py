"""The torch-free description of every family against diffusers' own class, on the meta device."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from arachne.core.bucket import Bucket
from arachne.core.families import FAMILIES, family_named
from arachne.core.model_shape import ModelShape
from arachne.cost.flops import forward_flops
from tests.models.diffusers_classes import CLASSES

PRESETS = {name: shape for family in FAMILIES.values() for name, shape in family.presets.items()}


def odd_shape(family_name: str) -> ModelShape:
    """A small shape in which no two sizes are alike, as far as the family's class allows."""
    family = family_named(family_name)
    preset = next(iter(family.presets.values()))
    optional = {"num_single_layers": 2, "num_refiner_layers": 3, "pooled_text_size": 26}
    return replace(
        preset,
        num_layers=4,
        num_heads=6,
        head_size=24,
        ffn_size=family.fixed_ffn_size(144) if family.fixed_ffn_size else 344,
        latent_channels=12,
        text_size=40,
        text_tokens=7,
        **{name: size for name, size in optional.items() if getattr(preset, name)},
    )


def shallow(shape: ModelShape) -> ModelShape:
    """Two blocks of a kind: counting is slow, and every block of a kind costs the same."""
    return replace(shape, num_layers=2, num_single_layers=min(2, shape.num_single_layers))


def with_first_frame(shape: ModelShape, *, has_image: bool) -> ModelShape:
    """An image-to-video model of the same sizes, with or without states of the image."""
    condition_channels = family_named(shape.family).condition_channels
    assert condition_channels is not None
    changes = {"condition_channels": condition_channels(shape.latent_channels)}
    if has_image:
        changes |= {"image_size": 48, "image_tokens": 5, "text_tokens": 512}
    return replace(shape, **changes)


ODD = {f"odd {name}": odd_shape(name) for name in FAMILIES} | {
    **{
        f"odd {name}, image to video": with_first_frame(odd_shape(name), has_image=False)
        for name in ("wan", "cogvideox", "cogvideox15", "hunyuan_video")
    },
    "odd wan, with an image encoder": with_first_frame(odd_shape("wan"), has_image=True),
    **{
        f"odd {name}, first frame kept": replace(odd_shape(name), keeps_first_frame=True)
        for name in ("wan_5b", "ltx", "hunyuan_video")
    },
}
SHALLOW = {name: shallow(shape) for name, shape in PRESETS.items()}


def named(shapes: dict[str, ModelShape]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("shape", list(shapes.values()), ids=list(shapes))


@named(PRESETS | ODD)
def test_parameters_are_counted_exactly(shape: ModelShape):
    module = CLASSES[shape.family].build(shape)
    counted = sum(parameter.numel() for parameter in module.parameters())
    family = family_named(shape.family)
    idle = family.num_idle_parameters(shape) if family.num_idle_parameters else 0
    assert family.num_parameters(shape) + idle == counted


def counted_flops(shape: ModelShape, bucket: Bucket, num_clips: int) -> int:
    adapter = CLASSES[shape.family]
    module = adapter.build(shape)
    grid = family_named(shape.family).geometry.latent_grid(bucket)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        adapter.call(module, shape, grid, num_clips)
    return counter.get_total_flops()


@named(SHALLOW | ODD)
@pytest.mark.parametrize(
    ("size", "seconds", "num_clips"), [("832x480", 2, 1), ("320x192", 0, 3)], ids=["video", "image"]
)
def test_flops_are_those_that_torch_counts(
    shape: ModelShape, size: str, seconds: int, num_clips: int
):
    geometry = family_named(shape.family).geometry
    frames = geometry.legal_frames_up_to(1 + 24 * seconds)
    bucket = Bucket.parse(f"{size}x{frames}")

    counted = counted_flops(shape, bucket, num_clips)
    ours = forward_flops(shape, geometry.num_tokens(bucket), num_clips)

    assert ours == pytest.approx(counted, rel=3e-4)
