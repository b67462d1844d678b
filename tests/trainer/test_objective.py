from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arachne.core.errors import ConfigError
from arachne.trainer.config import RunConfig
from arachne.trainer.dataset import ClipArrays
from arachne.trainer.ddpm import Ddpm, kept_signal
from arachne.trainer.flow_matching import FlowMatching
from arachne.trainer.objective import (
    ClipSample,
    clip_losses,
    clip_weights,
    objective_of,
    training_sample,
)
from arachne.trainer.randomness import draw_clip
from arachne.trainer.settings.data import DataSettings
from arachne.trainer.settings.model import ModelSettings
from arachne.trainer.settings.objective import ObjectiveSettings
from arachne.trainer.settings.run import RunSettings
from tests.runtime.tiny_wan import float64_everywhere, tiny_wan

LATENTS = (4, 2, 4, 4)
FLOW = FlowMatching(settings=ObjectiveSettings())
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
        objective=FLOW,
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


def test_a_weight_of_the_level_counts_in_the_loss_and_others_do_not_feel_it(model):
    samples = [sample_of(0), sample_of(1)]
    plain = losses_of(model, *samples).tolist()
    weighted = losses_of(model, replace(samples[0], loss_weight=2.5), samples[1]).tolist()
    assert weighted == pytest.approx([2.5 * plain[0], plain[1]], rel=1e-12)


def test_a_clip_trains_at_the_level_and_weight_of_its_objective():
    settings = ObjectiveSettings(shift="auto", loss_weighting="cosmap")
    objective, draw = FlowMatching(settings=settings), draws(1)[0]
    sample = training_sample(
        sample_of(0).arrays, draw, objective, num_tokens=900, caption_dropout=0.0
    )
    assert sample.sigma == objective.level(draw, 900) != objective.level(draw, 4000)
    assert sample.loss_weight == objective.loss_weight(sample.sigma, 900) != 1.0


def test_a_ddpm_model_is_asked_for_v_at_its_timestep(model):
    objective, sample = Ddpm(settings=ObjectiveSettings()), replace(sample_of(0), sigma=0.3)
    seen = []

    def predict(noisy_BCFHW, sigma_B, text_BLD):
        seen.append(sigma_B.tolist())
        kept = float(kept_signal(1.0, True)[300])
        clean = torch.from_numpy(sample.arrays.latents).double()
        noise = sample.noise.double()
        torch.testing.assert_close(noisy_BCFHW[0], kept**0.5 * clean + (1 - kept) ** 0.5 * noise)
        return (kept**0.5 * noise - (1 - kept) ** 0.5 * clean + 0.5)[None]

    (loss,) = clip_losses(
        SimpleNamespace(predict=predict, shape=model.shape),
        [sample],
        objective=objective,
        null_text=NULL_TEXT,
        device=torch.device("cpu"),
        dtype=torch.float64,
    ).tolist()
    assert seen == [[0.3]]
    assert loss == pytest.approx(0.25, rel=1e-12)


@pytest.mark.parametrize(
    ("family", "kind", "expected"),
    [
        ("wan", "auto", FlowMatching),
        ("cogvideox", "auto", Ddpm),
        ("cogvideox", "flow_matching", FlowMatching),
        ("wan", "ddpm", Ddpm),
    ],
)
def test_a_run_trains_what_its_family_was_trained_on_unless_it_says_otherwise(
    family, kind, expected
):
    config = RunConfig(
        run=RunSettings(dir="run", steps=1),
        data=DataSettings(path="clips", cache="cache"),
        model=ModelSettings(family=family),
        objective=ObjectiveSettings(kind=kind),
    )
    assert type(objective_of(config)) is expected


@pytest.mark.parametrize(
    ("family", "snr_shift", "expected"),
    [("cogvideox", "auto", 1.0), ("cogvideox_2b", "auto", 3.0), ("cogvideox_2b", 2.0, 2.0)],
)
def test_signal_to_noise_ratios_are_the_familys_unless_the_run_says_otherwise(
    family, snr_shift, expected
):
    config = RunConfig(
        run=RunSettings(dir="run", steps=1),
        data=DataSettings(path="clips", cache="cache"),
        model=ModelSettings(family=family),
        objective=ObjectiveSettings(snr_shift=snr_shift),
    )
    level_B = torch.tensor([0.5], dtype=torch.float64)
    kept = float(kept_signal(expected, True)[500])
    assert float(objective_of(config).mixture(level_B).clean) == pytest.approx(kept**0.5)


def test_a_setting_that_the_familys_objective_ignores_is_refused():
    with pytest.raises(ConfigError, match="this run trains ddpm; leave it out, or set objective"):
        RunConfig(
            run=RunSettings(dir="run", steps=1),
            data=DataSettings(path="clips", cache="cache"),
            model=ModelSettings(family="cogvideox"),
            objective=ObjectiveSettings(shift=5.0),
        )


def test_the_asked_share_of_captions_is_dropped():
    arrays = sample_of(0).arrays
    for share in (0.0, 0.3, 1.0):
        kept = [
            training_sample(arrays, draw, FLOW, num_tokens=8, caption_dropout=share).has_caption
            for draw in draws(2000)
        ]
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
