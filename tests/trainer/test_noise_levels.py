"""Noise levels: how they are distributed, shifted, shared out over a step, and weighted."""

from dataclasses import replace
from math import exp, inf, log, pi

import numpy as np
import pytest
import torch
from diffusers.pipelines.flux.pipeline_flux import calculate_shift
from diffusers.training_utils import (
    compute_density_for_timestep_sampling,
    compute_loss_weighting_for_sd3,
)
from hypothesis import given
from hypothesis import strategies as st

from arachne.core.errors import ConfigError
from arachne.trainer.ddpm import Ddpm
from arachne.trainer.flow_matching import FlowMatching
from arachne.trainer.noise_levels import shift_of, shifted_sigma
from arachne.trainer.randomness import draw_clip
from arachne.trainer.settings.objective import LEAST_SHIFT, MOST_SHIFT, ObjectiveSettings

SAMPLINGS = ("uniform", "logit_normal", "mode")


def flow(**values) -> FlowMatching:
    return FlowMatching(settings=ObjectiveSettings(**values))


def levels(objective: FlowMatching, num_steps: int, num_slots: int = 1) -> np.ndarray:
    """Levels by step and slot, of clips of 1000 tokens."""
    strata = num_slots if objective.settings.stratified else 1
    return np.array(
        [
            [
                objective.level(
                    draw_clip(seed=1, step=step, slot=slot, shape=(), num_strata=strata), 1000
                )
                for slot in range(num_slots)
            ]
            for step in range(num_steps)
        ]
    )


def test_levels_of_the_default_settings_stay_what_they_were():
    """A run that goes on after an update draws on; the numbers are of version 0.1."""
    found = [
        flow().level(draw_clip(seed=seed, step=step, slot=slot, shape=(2,)), 1000)
        for seed, step, slot in ((0, 0, 0), (3, 1, 2), (7, 1000, 31))
    ]
    assert found == [0.33724935582575816, 0.8817018806655694, 0.8596294769885432]
    draw = draw_clip(seed=3, step=1, slot=2, shape=(2,))
    assert (draw.uniform, draw.caption_uniform) == (0.6777759429534601, 0.24290972269647404)


def test_logit_normal_levels_have_the_quantiles_of_a_sigmoid_of_a_normal():
    found = levels(flow(timestep_sampling="logit_normal", shift=1.0, logit_mean=0.5), 4000)
    expected = [1 / (1 + exp(-(z + 0.5))) for z in (-1.2816, 0.0, 1.2816)]
    assert np.quantile(found, [0.1, 0.5, 0.9]) == pytest.approx(expected, abs=0.03)


def test_uniform_levels_are_uniform_where_nothing_is_shifted():
    found = levels(flow(timestep_sampling="uniform", shift=1.0), 4000)
    assert np.quantile(found, [0.1, 0.5, 0.9]) == pytest.approx([0.1, 0.5, 0.9], abs=0.03)


@pytest.mark.parametrize("scale", [-1.0, 0.0, 0.5, 1.29])
def test_mode_levels_have_the_quantiles_of_diffusers(scale):
    generator = torch.Generator().manual_seed(0)
    theirs = compute_density_for_timestep_sampling(
        "mode", 20000, mode_scale=scale, generator=generator
    ).numpy()
    found = levels(flow(timestep_sampling="mode", mode_scale=scale, shift=1.0), 4000)
    shares = [0.05, 0.25, 0.5, 0.75, 0.95]
    assert np.quantile(found, shares) == pytest.approx(np.quantile(theirs, shares), abs=0.03)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@given(step=st.integers(0, 10**6), shift=st.floats(0.2, 12.0))
def test_the_shift_moves_each_level_by_its_formula(sampling, step, shift):
    draw = draw_clip(seed=0, step=step, slot=0, shape=())
    plain = flow(timestep_sampling=sampling, shift=1.0).level(draw, 1000)
    shifted = flow(timestep_sampling=sampling, shift=shift).level(draw, 1000)
    assert shifted == pytest.approx(shift * plain / (1 + (shift - 1) * plain), rel=1e-12)
    assert 0.0 <= shifted <= 1.0


@given(st.floats(0.0, 1.0), st.floats(0.1, 20.0))
def test_a_shift_is_undone_by_its_inverse(sigma, shift):
    assert shifted_sigma(shifted_sigma(sigma, shift), 1.0 / shift) == pytest.approx(sigma, abs=1e-9)


@pytest.mark.parametrize("num_tokens", [256, 1000, 4096, 4500])
def test_an_automatic_shift_is_the_one_of_flux(num_tokens):
    settings = ObjectiveSettings(shift="auto", max_shift=10.0)
    assert log(shift_of(settings, num_tokens)) == pytest.approx(calculate_shift(num_tokens))


def test_an_automatic_shift_follows_each_clip_and_is_capped():
    settings = ObjectiveSettings(shift="auto", max_shift=5.0)
    shifts = [shift_of(settings, tokens) for tokens in (256, 4096, 75_600, 10**9)]
    assert shifts == sorted(shifts)
    assert shifts[2] == shifts[3] == pytest.approx(5.0)
    draw = draw_clip(seed=0, step=0, slot=0, shape=())
    small, large = (flow(shift="auto").level(draw, tokens) for tokens in (300, 75_600))
    assert small < large


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_stratified_levels_of_a_step_take_one_part_of_the_distribution_each(sampling):
    objective = flow(timestep_sampling=sampling, shift=3.0, stratified=True)
    draw = draw_clip(seed=0, step=0, slot=0, shape=())
    edges = [objective.level(replace(draw, uniform=share), 1000) for share in (0.25, 0.5, 0.75)]
    found = levels(objective, 300, 4)
    parts = np.searchsorted(edges, found)
    assert all(sorted(row) == [0, 1, 2, 3] for row in parts)
    assert len({tuple(row) for row in parts}) > 15  # nor is the order always the same
    plain = flow(timestep_sampling=sampling, shift=3.0)
    assert found.mean() == pytest.approx(levels(plain, 4000).mean(), abs=0.02)


def test_one_stratum_changes_nothing():
    plain = draw_clip(seed=5, step=6, slot=7, shape=(3,))
    assert draw_clip(seed=5, step=6, slot=7, shape=(3,), num_strata=1).uniform == plain.uniform
    stratified = draw_clip(seed=5, step=6, slot=7, shape=(3,), num_strata=8)
    assert stratified.uniform != plain.uniform
    assert (stratified.normal, stratified.caption_uniform) == (plain.normal, plain.caption_uniform)
    assert np.array_equal(stratified.noise, plain.noise)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("span", [(0.875, 1.0), (0.0, 0.875), (0.3, 0.6)])
def test_a_range_keeps_the_distribution_inside_it(sampling, span):
    values = {"timestep_sampling": sampling, "shift": 3.0}
    everywhere = levels(flow(**values), 8000)
    inside = everywhere[(everywhere >= span[0]) & (everywhere <= span[1])]
    found = levels(flow(**values, timestep_range=span), 2000)
    assert span[0] <= found.min()
    assert found.max() <= span[1]
    width = span[1] - span[0]
    assert np.quantile(found, [0.2, 0.5, 0.8]) == pytest.approx(
        np.quantile(inside, [0.2, 0.5, 0.8]), abs=0.12 * width
    )


def test_the_levels_of_validation_span_the_range_evenly_before_the_shift():
    assert [flow(shift=1.0).even_level(share, 1) for share in (0.25, 0.75)] == [0.25, 0.75]
    assert flow(shift=3.0).even_level(0.5, 1) == pytest.approx(0.75)
    expert = flow(shift=3.0, timestep_range=(0.875, 1.0))
    assert expert.even_level(0.0, 1) == pytest.approx(0.875)
    assert expert.even_level(1.0, 1) == pytest.approx(1.0)


@pytest.mark.parametrize("weighting", ["none", "cosmap", "sigma_sqrt"])
@pytest.mark.parametrize("sigma", [0.01, 0.3, 0.5, 0.9, 1.0])
def test_the_loss_weights_are_those_of_diffusers(weighting, sigma):
    theirs = compute_loss_weighting_for_sd3(weighting, torch.tensor([sigma], dtype=torch.float64))
    found = flow(loss_weighting=weighting).loss_weight(sigma, 1000)
    assert found == pytest.approx(float(theirs), rel=1e-6)


def test_the_weight_of_a_clean_clip_is_finite():
    assert flow(loss_weighting="sigma_sqrt").loss_weight(0.0, 1) == pytest.approx(1e6)
    assert flow(loss_weighting="cosmap").loss_weight(0.0, 1) == pytest.approx(2 / pi)
    assert flow(loss_weighting="logit_normal").loss_weight(0.0, 1) == 0.0
    assert flow(loss_weighting="logit_normal").loss_weight(1.0, 1) == 0.0


@given(
    values=st.fixed_dictionaries(
        {
            "shift": st.sampled_from(["auto", LEAST_SHIFT, MOST_SHIFT, 3.0]),
            "timestep_sampling": st.sampled_from(SAMPLINGS),
            "stratified": st.booleans(),
            "timestep_range": st.sampled_from([(0.0, 1.0), (0.0, 1e-9), (0.999999999, 1.0)]),
            "loss_weighting": st.sampled_from(["none", "logit_normal", "cosmap", "sigma_sqrt"]),
        }
    ),
    std=st.sampled_from([1e-3, 1.0, 1e3]),
    mean=st.sampled_from([-100.0, 0.0, 100.0]),
    line=st.sampled_from([(-6.9, 6.9), (0.0, 1.0), (6.9, 6.9)]),
    tokens=st.sampled_from([1, 1000, 10**7]),
    step=st.integers(0, 50),
)
def test_every_setting_that_is_accepted_has_finite_levels_and_weights(
    values, std, mean, line, tokens, step
):
    if "logit_normal" in (values["timestep_sampling"], values["loss_weighting"]):
        values = values | {"logit_std": std, "logit_mean": mean}
    if values["shift"] == "auto":
        values |= {"max_shift": MOST_SHIFT, "shift_tokens": (1000, 1001), "shift_exponents": line}
    objective = flow(**values)
    draw = draw_clip(seed=0, step=step, slot=0, shape=(), num_strata=2)
    low, high = values["timestep_range"]
    for level in (objective.level(draw, tokens), objective.even_level(0.5, tokens)):
        assert low - 1e-12 <= level <= high + 1e-12
        assert 0.0 <= objective.loss_weight(level, tokens) < inf


@pytest.mark.parametrize("prediction", ["v", "noise", "clean"])
@pytest.mark.parametrize("snr_shift", [LEAST_SHIFT, MOST_SHIFT])
@pytest.mark.parametrize("zero_terminal_snr", [False, True])
def test_every_timestep_of_ddpm_has_a_finite_weight(prediction, snr_shift, zero_terminal_snr):
    settings = ObjectiveSettings(
        snr_shift=snr_shift,
        zero_terminal_snr=zero_terminal_snr,
        prediction=prediction,
        loss_weighting="min_snr",
    )
    if prediction == "noise" and zero_terminal_snr:
        return  # refused by `check`
    settings.check("ddpm")
    weights = [Ddpm(settings=settings).loss_weight(t / 1000, 1) for t in range(1000)]
    assert all(0.0 <= weight < inf for weight in weights)


def test_uniform_sampling_with_logit_normal_weights_has_the_loss_of_logit_normal_sampling():
    """Whatever the error at a level is, and whatever the shift."""
    shape = {"logit_mean": 0.4, "logit_std": 0.8, "shift": 3.0, "stratified": True}
    weighted = flow(timestep_sampling="uniform", loss_weighting="logit_normal", **shape)
    sampled = flow(timestep_sampling="logit_normal", **shape)

    def loss(objective: FlowMatching) -> float:
        found = levels(objective, 40, 100).ravel()
        return float(np.mean([objective.loss_weight(s, 1000) * (1.0 + s**3) for s in found]))

    assert loss(weighted) == pytest.approx(loss(sampled), rel=0.01)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"timestep_range": (0.5, 0.5)}, r"timestep_range is \[0.5, 0.5\]; name the lower"),
        ({"timestep_range": (0.5, 1.5)}, "both between 0"),
        ({"mode_scale": 2.0}, "mode_scale is 2; it must be at most 1.75"),
        ({"max_shift": 0.0}, "objective.max_shift is 0.0; it must be above 0"),
        ({"shift_tokens": (9, 9)}, "rising numbers of tokens"),
        ({"prediction": "noise"}, "set objective.zero_terminal_snr = false"),
    ],
)
def test_settings_that_mean_nothing_are_refused(values, words):
    with pytest.raises(ConfigError, match=words):
        ObjectiveSettings(**values).check("ddpm")


def test_settings_of_the_other_kind_are_refused():
    with pytest.raises(
        ConfigError, match=r"objective\.snr_shift is a setting of ddpm, and this run"
    ):
        ObjectiveSettings(snr_shift=3.0).check("flow_matching")
    ObjectiveSettings(snr_shift=1.0).check("flow_matching")  # as runs of former versions hold it
    with pytest.raises(ConfigError, match=r"objective\.shift is a setting of flow_matching"):
        ObjectiveSettings(shift="auto").check("ddpm")
    with pytest.raises(
        ConfigError, match="'min_snr' does not go with flow_matching; choose 'none'"
    ):
        ObjectiveSettings(loss_weighting="min_snr").check("flow_matching")
