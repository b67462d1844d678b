"""Each family that is trained has the loss and gradient of a plain diffusers step, also when split.

Shape suffixes: those of `arachne.models.interface`.
"""

import functools
from unittest.mock import patch

import numpy as np
import pytest
import torch

from arachne.core.families import family_named
from arachne.models import hunyuan_video15
from arachne.models.diffusers_module import diffusers_class
from arachne.models.families import TRANSFORMERS
from arachne.runtime import collectives
from arachne.runtime.launcher import run_ranks
from arachne.runtime.sequence_parallel import install, sequence_parallel
from arachne.trainer.dataset import ClipArrays
from arachne.trainer.ddpm import Ddpm
from arachne.trainer.flow_matching import FlowMatching
from arachne.trainer.objective import ClipSample, clip_losses
from arachne.trainer.settings.objective import ObjectiveSettings
from tests.models.tiny_transformers import tiny_inputs, tiny_transformer
from tests.runtime.rank_groups import open_groups
from tests.runtime.tiny_wan import float64_everywhere
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


def plain_gradient(name, model, samples):
    """Loss and gradient of the class as it is, clip by clip."""
    plain = diffusers_class(model.family)(**model.family.options(model.shape)).double()
    plain.load_state_dict(model.module.state_dict())

    def of_clip(sample, index, num_words):
        clean, text = (
            torch.from_numpy(a).double()[None] for a in (sample.arrays.latents, sample.arrays.text)
        )
        mask = (torch.arange(text.shape[1]) < num_words)[None]
        return plain_loss(name, plain, clean, sample.noise.double()[None], text, mask, index)

    losses = [of_clip(*each) for each in zip(samples, INDICES, NUM_WORDS, strict=True)]
    parameters = list(plain.parameters())
    gradient = torch.autograd.grad(sum(losses), parameters, materialize_grads=True)
    return torch.stack(losses).detach(), gradient


def errors_of(world, group, name):
    """Relative errors of the losses and of the gradient, over all ranks of one launch."""
    model = tiny_transformer(name)
    samples = samples_of(name, model)
    expected_losses, expected = plain_gradient(name, model, samples)
    kind = {"ddpm": Ddpm, "flow_matching": FlowMatching}[family_named(name).objective]
    install(model.module, model.layout)
    with sequence_parallel(group):
        losses = clip_losses(
            model,
            samples,
            objective=kind(settings=ObjectiveSettings()),
            null_text=torch.zeros(model.shape.text_tokens, model.shape.text_size),
            device=torch.device("cpu"),
            dtype=torch.float64,
        )
        (losses.sum() / world.size).backward()
    squares = torch.zeros(2, dtype=torch.float64)
    for parameter, wanted in zip(model.module.parameters(), expected, strict=True):
        total = torch.zeros_like(wanted) if parameter.grad is None else parameter.grad
        collectives.all_reduce_sum(total, group)
        squares += torch.stack([(total - wanted).pow(2).sum(), wanted.pow(2).sum()])
    of_loss = float(((losses.detach() - expected_losses) / expected_losses).abs().max())
    return of_loss, float((squares[0] / squares[1]).sqrt())


def errors_of_families(world):
    _, groups = open_groups(world)
    few_tokens = patch.multiple(hunyuan_video15, GLYPH_TOKENS=3, IMAGE_TOKENS=2)
    with float64_everywhere(), few_tokens:
        return {name: errors_of(world, groups.world, name) for name in TRANSFORMERS}


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
