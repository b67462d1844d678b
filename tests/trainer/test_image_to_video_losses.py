"""Image to video of every family has the loss and gradient of a plain diffusers step.

Shape suffixes: those of `arachne.models.interface`.
"""

from unittest.mock import patch

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from arachne.models import hunyuan_video15
from arachne.runtime.launcher import run_ranks
from arachne.trainer.dataset import ClipArrays
from arachne.trainer.objective import ClipSample
from tests.models.tiny_transformers import tiny_inputs
from tests.runtime.rank_groups import open_groups
from tests.runtime.tiny_wan import float64_everywhere
from tests.trainer.first_frame_models import CASES, first_of, tiny_model
from tests.trainer.launch_gradients import launch_errors
from tests.trainer.plain_steps import FORWARDS, cogvideox_loss, hunyuan, hunyuan15, level_of, wan

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # diffusers of itself

INDICES = (200, 700)


def plain_loss(module, clean, noise, text, first_latents, states, index):
    """A training step of one clip, as one would write it with diffusers alone."""
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    timestep = scheduler.timesteps[index : index + 1]
    noisy = scheduler.scale_noise(clean, timestep, noise)
    num_frames = 4 * (clean.shape[2] - 1) + 1
    mask = torch.zeros(1, num_frames, *clean.shape[3:], dtype=clean.dtype)
    mask[:, 0] = 1.0
    mask = torch.cat([mask[:, :1].repeat(1, 4, 1, 1), mask[:, 1:]], dim=1)
    mask = mask.view(1, -1, 4, *clean.shape[3:]).transpose(1, 2)
    predicted = module(
        torch.cat([noisy, mask, first_latents], dim=1),
        scheduler.sigmas[index : index + 1].double() * 1000.0,
        text,
        states,
        return_dict=False,
    )[0]
    return (predicted - (noise - clean)).pow(2).mean()


def plain_loss_of_kept_frame(module, clean, noise, text, index, forward):
    """The same where the first frame goes in clean, at timestep 0, and counts nothing.

    HunyuanVideo's class of `token_replace` gives that frame's tokens timestep 0 by itself.
    """
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    noisy = scheduler.scale_noise(clean, scheduler.timesteps[index : index + 1], noise)
    noisy[:, :, 0] = clean[:, :, 0]
    mask = torch.ones(1, *clean.shape[2:], dtype=clean.dtype)
    mask[:, 0] = 0.0
    if forward is wan:
        mask = mask[..., ::2, ::2]
    timesteps = mask.flatten(1) * scheduler.sigmas[index].double() * 1000.0
    words = words_of(text)
    if forward is hunyuan:
        words, timesteps = words_of(text[:, 1:]), scheduler.sigmas[[index]].double() * 1000.0
    predicted = forward(module, noisy, timesteps, text, words)
    return (predicted - (noise - clean))[:, :, 1:].pow(2).mean()


def words_of(text):
    return (torch.arange(text.shape[1]) <= text[0].any(dim=1).nonzero().max())[None]


def errors_of(group, case):
    model = tiny_model(case)
    latents, _, text = tiny_inputs(model, 2)
    first = first_of(model, latents)
    noise = torch.randn(latents.shape, generator=torch.Generator().manual_seed(9))
    keeps = model.shape.keeps_first_frame
    samples = [
        ClipSample(
            arrays=ClipArrays(
                latents=latents[clip].float().numpy(),
                text=text[clip].float().numpy(),
                first_latents=None if keeps else first.latents[clip].numpy(),
                image_states=None if first.states is None else first.states[clip].numpy(),
            ),
            noise=noise[clip],
            sigma=level_of(model.family.name, index),
            has_caption=True,
        )
        for clip, index in enumerate(INDICES)
    ]

    def loss_of(plain, clip):
        arrays = samples[clip].arrays
        clean, text, first_latents, states = (
            None if array is None else torch.from_numpy(array).double()[None]
            for array in (arrays.latents, arrays.text, arrays.first_latents, arrays.image_states)
        )
        noise_of_clip, index = samples[clip].noise.double()[None], INDICES[clip]
        if model.family.name.startswith("cogvideox"):
            return cogvideox_loss(plain, clean, noise_of_clip, text, index, first_latents)
        if model.family.name.startswith("hunyuan") and not keeps:
            words = words_of(text[:, model.shape.pooled_rows :])
            scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
            noisy = scheduler.scale_noise(clean, scheduler.timesteps[[index]], noise_of_clip)
            level = scheduler.sigmas[[index]].double() * 1000.0
            inputs = plain, noisy, level, text, words, first_latents
            is_15 = model.family.name == "hunyuan_video15"
            predicted = hunyuan15(*inputs, states) if is_15 else hunyuan(*inputs)
            return (predicted - (noise_of_clip - clean)).pow(2).mean()
        if not keeps:
            return plain_loss(plain, clean, noise_of_clip, text, first_latents, states, index)
        forward = FORWARDS[model.family.name]
        return plain_loss_of_kept_frame(plain, clean, noise_of_clip, text, index, forward)

    return launch_errors(group, model, samples, loss_of)


def errors_of_cases(world):
    _, groups = open_groups(world)
    with float64_everywhere(), patch.object(hunyuan_video15, "GLYPH_TOKENS", 3):
        return {case: errors_of(groups.world, case) for case in CASES}


@pytest.mark.distributed
@pytest.mark.parametrize("degree", [1, 2])
def test_loss_and_gradient_are_those_of_a_plain_diffusers_step(degree):
    for errors in run_ranks(degree, errors_of_cases):
        assert set(errors) == set(CASES)
        for case, found in errors.items():
            assert max(found) < 1e-12, (case, found)
