"""Each family that is trained has the loss and gradient of a plain diffusers step, also when split.

Shape suffixes: those of `arachne.models.interface`.
"""

import functools
from unittest.mock import patch

import numpy as np
import pytest
import torch

from arachne.models import hunyuan_video15
from arachne.models.families import TRANSFORMERS
from arachne.runtime.launcher import run_ranks
from arachne.trainer.dataset import ClipArrays
from arachne.trainer.objective import ClipSample
from tests.models.tiny_transformers import tiny_inputs, tiny_transformer
from tests.runtime.rank_groups import open_groups
from tests.runtime.tiny_wan import float64_everywhere
from tests.trainer.launch_gradients import launch_errors
from tests.trainer.plain_steps import level_of, plain_loss

pytestmark = pytest.mark.filterwarnings("ignore:In CPU autocast")  # Mochi asks for float32

TOLERANCE = {"mochi": 1e-6}
"""Mochi casts modulations and rotary angles to float32 itself."""

INDICES = (200, 700)
"""Of the schedulers' timesteps, for two clips: one noisy, one nearly clean."""

NUM_WORDS = (2, 5)
"""The first clip's caption is shorter, and padded."""


def samples_of(name, model):
    latents, _, text = tiny_inputs(model, 2)
    noise = torch.randn(latents.shape, generator=torch.Generator().manual_seed(9))
    return [
        ClipSample(
            arrays=ClipArrays(latents=clean.float().numpy(), text=states.float().numpy()),
            noise=of_clip,
            sigma=level_of(name, index),
            has_caption=True,
        )
        for clean, states, of_clip, index in zip(latents, text, noise, INDICES, strict=True)
    ]


def errors_of(group, name):
    model = tiny_transformer(name)
    samples = samples_of(name, model)

    def loss_of(plain, clip):
        arrays = samples[clip].arrays
        clean, text = (torch.from_numpy(a).double()[None] for a in (arrays.latents, arrays.text))
        mask = (torch.arange(model.shape.text_tokens) < NUM_WORDS[clip])[None]
        noise = samples[clip].noise.double()[None]
        return plain_loss(name, plain, clean, noise, text, mask, INDICES[clip])

    return launch_errors(group, model, samples, loss_of)


def errors_of_families(world):
    _, groups = open_groups(world)
    few_tokens = patch.multiple(hunyuan_video15, GLYPH_TOKENS=3, IMAGE_TOKENS=2)
    with float64_everywhere(), few_tokens:
        return {name: errors_of(groups.world, name) for name in TRANSFORMERS}


@functools.cache
def errors_of_ranks(world_size):
    """All families on one start of the ranks."""
    return run_ranks(world_size, errors_of_families)


@pytest.mark.distributed
@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_loss_and_gradient_are_those_of_a_plain_diffusers_step(name, degree):
    for errors in errors_of_ranks(degree):
        assert max(errors[name]) < TOLERANCE.get(name, 1e-12), errors[name]


def test_samples_are_noisy_and_nearly_clean():
    assert level_of("wan", INDICES[0]) > 0.9 > 0.6 > level_of("wan", INDICES[1])
    assert np.diff(INDICES) > 0
