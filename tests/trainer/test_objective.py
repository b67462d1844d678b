from math import exp

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arachne.trainer.dataset import ClipArrays
from arachne.trainer.objective import (
    ClipSample,
    clip_losses,
    clip_weights,
    sigma_of,
    training_sample,
)
from arachne.trainer.randomness import draw_clip
from arachne.trainer.settings.objective import ObjectiveSettings
from tests.runtime.tiny_wan import float64_everywhere, tiny_wan

LATENTS = (4, 2, 4, 4)
NULL_TEXT = torch.full((3, 8), 0.25)


@pytest.fixture(scope="module", autouse=True)
def exact():
    with float64_everywhere():
        yield


@pytest.fixture(scope="module")
def model():
    return tiny_wan()


def sample_of(slot: int, has_caption: bool = True) -> ClipSample:
    random = np.random.default_rng(slot)
    arrays = ClipArrays(
        latents=random.standard_normal(LATENTS).astype(np.float32),
        text=random.standard_normal((3, 8)).astype(np.float32),
    )
    draw = draw_clip(seed=0, step=0, slot=slot, shape=LATENTS)
    return ClipSample(
        arrays=arrays,
        noise=torch.from_numpy(draw.noise),
        sigma=draw.uniform,
        has_caption=has_caption,
    )


def losses_of(model, *samples: ClipSample) -> torch.Tensor:
    return clip_losses(
        model,
        samples,
        null_text=NULL_TEXT,
        device=torch.device("cpu"),
        dtype=torch.float64,
    )


def loss_by_hand(model, sample: ClipSample) -> float:
    clean = torch.from_numpy(sample.arrays.latents).double()
    noise = sample.noise.double()
    text = torch.from_numpy(sample.arrays.text) if sample.has_caption else NULL_TEXT
    noisy = clean + sample.sigma * (noise - clean)
    sigma = torch.tensor([sample.sigma], dtype=torch.float64)
    velocity = model.predict(noisy[None], sigma, text.double()[None])[0]
    error = (clean + velocity) - noise
    return (error * error).sum().item() / error.numel()


@pytest.mark.parametrize("has_caption", [True, False])
def test_the_loss_of_a_clip_is_the_mean_squared_error_of_its_velocity(model, has_caption):
    sample = sample_of(0, has_caption)
    assert losses_of(model, sample).tolist() == pytest.approx(
        [loss_by_hand(model, sample)], rel=1e-12
    )


def test_a_dropped_caption_changes_the_loss(model):
    first, second = losses_of(model, sample_of(0), sample_of(0, has_caption=False)).tolist()
    assert first != second


def test_stacked_clips_have_the_losses_they_have_alone(model):
    samples = [sample_of(0), sample_of(1, has_caption=False), sample_of(2)]
    alone = [losses_of(model, sample).tolist()[0] for sample in samples]
    assert losses_of(model, *samples).tolist() == pytest.approx(alone, rel=1e-12)


def test_a_stack_has_the_gradient_of_its_clips_alone(model):
    samples = [sample_of(0), sample_of(1, has_caption=False)]
    parameters = list(model.module.parameters())
    stacked = torch.autograd.grad(losses_of(model, *samples).sum(), parameters)
    alone = [torch.autograd.grad(losses_of(model, s).sum(), parameters) for s in samples]
    for together, first, second in zip(stacked, *alone, strict=True):
        torch.testing.assert_close(together, first + second, rtol=1e-10, atol=1e-12)


def draws(count: int):
    return [draw_clip(seed=1, step=step, slot=0, shape=()) for step in range(count)]


def test_uniform_sampling_is_uniform_where_nothing_is_shifted():
    settings = ObjectiveSettings(timestep_sampling="uniform", shift=1.0)
    sigmas = np.array([sigma_of(draw, settings) for draw in draws(4000)])
    assert np.quantile(sigmas, [0.1, 0.5, 0.9]) == pytest.approx([0.1, 0.5, 0.9], abs=0.03)


def test_logit_normal_sampling_has_the_quantiles_of_a_logistic_of_a_normal():
    settings = ObjectiveSettings(timestep_sampling="logit_normal", shift=1.0)
    sigmas = np.array([sigma_of(draw, settings) for draw in draws(4000)])
    expected = [1 / (1 + exp(-z)) for z in (-1.2816, 0.0, 1.2816)]
    assert np.quantile(sigmas, [0.1, 0.5, 0.9]) == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("sampling", ["uniform", "logit_normal"])
@given(step=st.integers(0, 10**6), shift=st.floats(0.2, 12.0))
def test_the_shift_moves_each_level_by_its_formula(sampling, step, shift):
    draw = draw_clip(seed=0, step=step, slot=0, shape=())
    plain = sigma_of(draw, ObjectiveSettings(timestep_sampling=sampling, shift=1.0))
    shifted = sigma_of(draw, ObjectiveSettings(timestep_sampling=sampling, shift=shift))
    assert shifted == pytest.approx(shift * plain / (1 + (shift - 1) * plain), rel=1e-12)
    assert 0.0 <= shifted <= 1.0


def test_the_asked_share_of_captions_is_dropped():
    arrays = sample_of(0).arrays
    for share in (0.0, 0.3, 1.0):
        settings = ObjectiveSettings(caption_dropout=share)
        kept = [training_sample(arrays, draw, settings).has_caption for draw in draws(2000)]
        assert 1 - sum(kept) / len(kept) == pytest.approx(share, abs=0.04 if 0 < share < 1 else 0)


def test_the_loss_of_uneven_ranks_is_the_mean_over_clips_not_over_ranks():
    # One rank holds three clips with loss 5, the other twelve with loss 0.
    weights = clip_weights([10] * 15, [True] * 15, "clip")
    assert sum(w * loss for w, loss in zip(weights, [5.0] * 3 + [0.0] * 12, strict=True)) == (
        pytest.approx(1.0)
    )


@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.booleans()), min_size=1),
    st.sampled_from(["clip", "token"]),
)
def test_weights_of_kept_clips_sum_to_one_and_others_count_nothing(clips, weighting):
    num_tokens, is_kept = zip(*clips, strict=True)
    weights = clip_weights(num_tokens, is_kept, weighting)
    assert sum(weights) == pytest.approx(1.0 if any(is_kept) else 0.0)
    assert all(bool(weight) == kept for weight, kept in zip(weights, is_kept, strict=True))


def test_weights_by_token_are_proportional_to_tokens():
    assert clip_weights([30, 10, 60], [True, True, False], "token") == (0.75, 0.25, 0.0)
