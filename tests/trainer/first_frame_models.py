"""Tiny image-to-video models of every family that has them, and first frames that are made up."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from arachne.core.bucket import Bucket
from arachne.core.families import family_named
from arachne.core.model_shape import ModelShape
from arachne.models.diffusers_module import VideoTransformer, build_transformer
from arachne.models.interface import FirstFrames
from arachne.trainer.planning_shape import planning_shape
from arachne.trainer.settings.model import ModelSettings
from tests.models.tiny_transformers import tiny_shape

IMAGE = {"image_size": 6, "image_tokens": 3, "text_tokens": 512}
"""Of models that attend to an image: diffusers' class counts on 512 text tokens."""

LEARNED = "cogvideox with learned positions"
KEPT_HUNYUAN = "hunyuan_video of 16 channels"

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
    KEPT_HUNYUAN: {"condition_channels": 0, "keeps_first_frame": True},
    "hunyuan_video15": {"image_size": 1152, "image_tokens": 2},
}


def tiny_model(case: str, dtype: torch.dtype = torch.float64) -> VideoTransformer:
    """A model with random weights, and random numbers for learned positions."""
    family = family_named(case.split()[0])
    assert family.has_image_to_video
    channels = family.condition_channels
    sees = {
        "condition_channels": channels(4) if channels else 0,
        "keeps_first_frame": family.keeps_first_frame == "always",
    }
    shape = replace(tiny_shape(family.name), **(sees | CASES[case]))
    model = build_transformer(shape, dtype=dtype, seed=0)
    if case == LEARNED:
        table = model.module.get_submodule("patch_embed").pos_embedding
        table.copy_(torch.randn(table.shape, generator=torch.Generator().manual_seed(3)))
    return model


def save_hunyuan(settings: ModelSettings, folder: Path, **sizes: object) -> ModelShape:
    """Weights of `token_replace` for a run with such settings, with few blocks; their shape."""
    few = {"num_single_layers": 1, "num_refiner_layers": 1, "keeps_first_frame": True}
    shape = replace(planning_shape(settings), **(few | sizes))
    build_transformer(shape, dtype=torch.float64, seed=0).module.save_pretrained(folder)
    return shape


def first_of(model: VideoTransformer, latents: Tensor) -> FirstFrames:
    """Made first frames, one for each clip."""
    generator = torch.Generator().manual_seed(5)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    shape = model.shape
    states = normal(len(latents), shape.image_tokens, shape.image_size)
    return FirstFrames(latents=normal(*latents.shape), states=states if shape.image_size else None)
