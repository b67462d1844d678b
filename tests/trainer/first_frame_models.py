"""Tiny image-to-video models of every family that has them, and first frames that are made up."""

from dataclasses import replace

import torch
from torch import Tensor

from arachne.core.bucket import Bucket
from arachne.core.families import family_named
from arachne.models.diffusers_module import VideoTransformer, build_transformer
from arachne.models.interface import FirstFrames
from tests.models.tiny_transformers import tiny_shape

IMAGE = {"image_size": 6, "image_tokens": 3, "text_tokens": 512}
"""Of models that attend to an image: diffusers' class counts on 512 text tokens."""

LEARNED = "cogvideox with learned positions"

CASES = {
    "wan": {},
    "wan and CLIP": IMAGE,
    "skyreels_v2 and CLIP": IMAGE,
    "wan_5b": {},
    "ltx": {},
    "cogvideox": {},
    LEARNED: {"only_bucket": Bucket(width=80, height=16, frames=17)},
    "cogvideox15": {},
    "hunyuan_video": {},
    "hunyuan_video15": {"image_size": 1152, "image_tokens": 2},
}


def tiny_model(case: str, dtype: torch.dtype = torch.float64) -> VideoTransformer:
    """A model with random weights, and random numbers for learned positions."""
    family = family_named(case.split()[0])
    assert family.has_image_to_video
    channels = family.condition_channels
    shape = replace(
        tiny_shape(family.name),
        condition_channels=channels(4) if channels else 0,
        keeps_first_frame=family.keeps_first_frame,
        **CASES[case],
    )
    model = build_transformer(shape, dtype=dtype, seed=0)
    if case == LEARNED:
        table = model.module.get_submodule("patch_embed").pos_embedding
        table.copy_(torch.randn(table.shape, generator=torch.Generator().manual_seed(3)))
    return model


def first_of(model: VideoTransformer, latents: Tensor) -> FirstFrames:
    """Made first frames, one for each clip."""
    generator = torch.Generator().manual_seed(5)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    shape = model.shape
    states = normal(len(latents), shape.image_tokens, shape.image_size)
    return FirstFrames(latents=normal(*latents.shape), states=states if shape.image_size else None)
