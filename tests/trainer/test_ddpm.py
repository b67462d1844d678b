"""DDPM: noise schedule, targets, weights and sampling are those of diffusers' schedulers."""

import numpy as np
import pytest
import torch
from diffusers import CogVideoXDDIMScheduler
from diffusers.training_utils import compute_snr

from arachne.trainer.ddpm import NUM_TIMESTEPS, Ddpm, kept_signal
from arachne.trainer.randomness import draw_clip
from arachne.trainer.sampling import walk
from arachne.trainer.settings.objective import ObjectiveSettings

PREDICTIONS = {"v": "v_prediction", "noise": "epsilon", "clean": "sample"}
VARIANTS = [(1.0, True), (3.0, True), (1.0, False), (3.0, False)]


def ddpm(**values) -> Ddpm:
    if values.get("prediction") == "noise":
        values.setdefault("zero_terminal_snr", False)
    return Ddpm(settings=ObjectiveSettings(**values))


def scheduler_of(objective: Ddpm) -> CogVideoXDDIMScheduler:
    settings = objective.settings
    return CogVideoXDDIMScheduler(
        prediction_type=PREDICTIONS[settings.prediction],
        snr_shift_scale=1.0 if settings.snr_shift == "auto" else settings.snr_shift,
        rescale_betas_zero_snr=settings.zero_terminal_snr,
        timestep_spacing="trailing",
        clip_sample=False,
    )


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("snr_shift", "zero_terminal_snr"), VARIANTS)
def test_the_noise_schedule_is_diffusers(snr_shift, zero_terminal_snr):
    objective = ddpm(snr_shift=snr_shift, zero_terminal_snr=zero_terminal_snr)
    theirs = scheduler_of(objective).alphas_cumprod.numpy()
    found = kept_signal(snr_shift, zero_terminal_snr)
    np.testing.assert_allclose(found, theirs, rtol=1e-12, atol=1e-15)
    assert (found[-1] == 0.0) == zero_terminal_snr


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_noise_and_targets_are_diffusers(prediction):
    objective = ddpm(prediction=prediction)
    clean, noise = normal(5, 3), normal(5, 3, seed=1)
    timesteps = torch.tensor([0, 1, 500, 998, 999])
    mixture = objective.mixture(timesteps.double() / NUM_TIMESTEPS)
    scheduler = scheduler_of(objective)
    noisy = mixture.clean[:, None] * clean + mixture.noise[:, None] * noise
    torch.testing.assert_close(noisy, scheduler.add_noise(clean, noise, timesteps))
    target = mixture.target_clean[:, None] * clean + mixture.target_noise[:, None] * noise
    expected = {
        "v": scheduler.get_velocity(clean, noise, timesteps),
        "noise": noise,
        "clean": clean,
    }[prediction]
    torch.testing.assert_close(target, expected)


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_min_snr_counts_high_ratios_no_more_than_gamma(prediction):
    objective = ddpm(prediction=prediction, loss_weighting="min_snr", min_snr_gamma=5.0)
    timesteps = torch.tensor([0, 100, 300, 600, 998])
    snr = compute_snr(scheduler_of(objective), timesteps).double()
    counted = snr.clamp(max=5.0)
    expected = {"v": counted / (snr + 1), "noise": counted / snr, "clean": counted}[prediction]
    found = [objective.loss_weight(int(t) / NUM_TIMESTEPS, 1) for t in timesteps]
    assert found == pytest.approx(expected.tolist(), rel=1e-5)
    assert ddpm().loss_weight(0.5, 1) == 1.0


def test_timesteps_are_whole_uniform_and_of_the_counted_draw():
    found = np.array(
        [ddpm().level(draw_clip(seed=0, step=s, slot=0, shape=()), 1) for s in range(4000)]
    )
    assert np.array_equal(np.round(found * NUM_TIMESTEPS) / NUM_TIMESTEPS, found)
    assert np.quantile(found, [0.1, 0.5, 0.9]) == pytest.approx([0.1, 0.5, 0.9], abs=0.03)
    draw = draw_clip(seed=0, step=0, slot=0, shape=())
    assert ddpm().level(draw, 1) == int(draw.uniform * NUM_TIMESTEPS) / NUM_TIMESTEPS


def test_every_timestep_can_be_drawn_and_none_beyond():
    edges = [0.0, 0.001, 0.9989, 0.9991, 1.0]
    found = [ddpm().even_level(share, 1) * NUM_TIMESTEPS for share in edges]
    assert [round(level) for level in found] == [0, 1, 998, 999, 999]


@pytest.mark.parametrize("num_steps", [1, 4, 50])
@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_sampling_takes_the_steps_of_diffusers(prediction, num_steps):
    objective = ddpm(prediction=prediction)
    noise, text = normal(2, 3, 2, 2, 2), normal(2, 4, 5, seed=2)

    def predict(latents, level_B, text_BLD):
        return torch.tanh(latents * 0.3) + level_B.view(-1, 1, 1, 1, 1)

    found = walk(
        predict,
        noise,
        text,
        null_text_LD=text[0],
        steps=objective.sampler_steps(num_steps, 1),
        guidance=1.0,
    )
    scheduler = scheduler_of(objective)
    scheduler.set_timesteps(num_steps)
    expected = noise
    for t in scheduler.timesteps:
        level_B = torch.full((2,), float(t) / NUM_TIMESTEPS, dtype=torch.float64)
        output = predict(expected, level_B, text)
        expected = scheduler.step(output, int(t), expected, return_dict=False)[0]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_any_number_of_steps_ends_at_the_clip():
    clip = normal(1, 2, 2, 2, 2, seed=3)
    objective = ddpm(prediction="clean")
    for num_steps in (1, 3, 7, 30, 1000):
        found = walk(
            lambda latents, level_B, text_BLD: clip,
            normal(1, 2, 2, 2, 2),
            normal(1, 1, 1),
            null_text_LD=normal(1, 1),
            steps=objective.sampler_steps(num_steps, 1),
            guidance=1.0,
        )
        torch.testing.assert_close(found, clip)
