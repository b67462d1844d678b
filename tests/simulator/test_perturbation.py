from math import log
from statistics import fmean, stdev

import pytest

from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade
from arachne.core.errors import ConfigError
from arachne.simulator.perturbation import UNDISTURBED, Perturbation

IMAGE = Bucket(width=96, height=64, frames=1)
VIDEO = Bucket(width=96, height=64, frames=33)


def cascade(*slots: int, module="dit", bucket=IMAGE, steps_ahead=0) -> Cascade:
    return Cascade(
        module=module, slots=slots, bucket=bucket, num_tokens=24, steps_ahead=steps_ahead
    )


def test_undisturbed_all_takes_what_was_modelled():
    assert UNDISTURBED.launch_factor(3, cascade(1, 2), 4) == 1.0
    assert UNDISTURBED.compute_s(3, 0, 1.0, 0.7) == 0.7


def test_jitter_follows_the_clips_however_they_are_stacked_and_split():
    noise = Perturbation(seed=5, jitter=0.2)
    alone = [noise.launch_factor(0, cascade(slot), 1) for slot in (0, 1)]

    assert noise.launch_factor(0, cascade(0, 1), 8) == pytest.approx(fmean(alone))
    assert alone[0] != alone[1]
    assert noise.launch_factor(0, cascade(0, module="vae"), 1) != alone[0]
    assert noise.launch_factor(1, cascade(0), 1) != alone[0]
    assert Perturbation(seed=6, jitter=0.2).launch_factor(0, cascade(0), 1) != alone[0]


def test_a_clip_encoded_a_step_ahead_has_the_noise_of_its_own_step():
    noise = Perturbation(jitter=0.2)

    ahead = noise.launch_factor(4, cascade(2, module="vae", steps_ahead=1), 1)
    assert ahead == noise.launch_factor(5, cascade(2, module="vae"), 1)


def test_jitter_is_as_large_as_it_says():
    noise = Perturbation(jitter=0.1)
    logs = [log(noise.launch_factor(step, cascade(0), 1)) for step in range(2000)]

    assert fmean(logs) == pytest.approx(0.0, abs=0.01)
    assert stdev(logs) == pytest.approx(0.1, rel=0.1)


def test_a_wrong_cost_model_is_wrong_about_a_shape_in_every_step():
    wrong = Perturbation(seed=2, shape_error=0.3)
    image = wrong.launch_factor(0, cascade(0), 1)

    assert wrong.launch_factor(9, cascade(1, 2), 8) == image != 1.0
    assert wrong.launch_factor(0, cascade(0, bucket=VIDEO), 1) != image
    assert wrong.launch_factor(0, cascade(0, module="vae"), 1) != image


def test_a_wrong_cost_model_is_wrong_about_a_degree_for_every_shape():
    wrong = Perturbation(seed=2, degree_error=0.3)
    single = wrong.launch_factor(0, cascade(0), 1)

    assert wrong.launch_factor(9, cascade(1, bucket=VIDEO), 1) == single != 1.0
    assert wrong.launch_factor(0, cascade(0), 2) != single


def test_a_straggler_is_slow_for_whole_windows_and_the_stated_share_of_time():
    slow = Perturbation(seed=1, straggler_share=0.25, straggler_factor=4.0, straggler_window_s=0.5)

    # A second of work takes 4 in a slow window; in 3 of 4 windows half a second is done, else 1/8.
    work_s = 4000 * (0.75 * 0.5 + 0.25 * 0.125)
    assert slow.compute_s(0, 7, 0.0, work_s) == pytest.approx(2000.0, rel=0.05)
    seconds = [slow.compute_s(0, 7, 0.5 * window, 0.1) for window in range(50)]
    assert {round(each, 9) for each in seconds} == {0.1, 0.4}


def test_a_launch_of_very_many_windows_takes_the_mean_pace_and_is_simulated_at_once():
    slow = Perturbation(straggler_share=0.25, straggler_factor=4.0, straggler_window_s=0.001)
    year_s = 3.2e7

    assert slow.compute_s(0, 0, 1.0, year_s) == pytest.approx(year_s / (0.75 + 0.25 / 4.0))
    always = Perturbation(straggler_share=1.0, straggler_factor=1000.0, straggler_window_s=0.001)
    assert always.compute_s(0, 0, 1.0, year_s) == pytest.approx(1000.0 * year_s)


def test_work_goes_on_where_a_window_ends():
    slow = Perturbation(seed=1, straggler_share=0.5, straggler_factor=3.0)
    whole_s = slow.compute_s(2, 1, 0.3, 5.0)

    first_s = slow.compute_s(2, 1, 0.3, 2.0)
    assert first_s + slow.compute_s(2, 1, 0.3 + first_s, 3.0) == pytest.approx(whole_s)
    assert slow.compute_s(3, 1, 0.3, 5.0) != whole_s
    assert slow.compute_s(2, 2, 0.3, 5.0) != whole_s


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"jitter": -0.1}, "perturbation jitter is -0.1; it is between 0, which is none, and 10"),
        ({"jitter": 1e308}, r"jitter is 1e\+308; it is between 0, .* and 10"),
        ({"degree_error": 11.0}, "degree_error is 11.0"),
        ({"shape_error": -1.0}, "shape_error is -1.0"),
        ({"straggler_share": 1.5}, "straggler_share is 1.5; it is between 0 and 1"),
        ({"straggler_window_s": 1e-12}, "straggler_window_s is 1e-12; it is at least 0.001"),
        ({"straggler_factor": 1e300}, r"straggler_factor is 1e\+300; it is between 0.001 and 1000"),
        ({"bandwidth": -2.0}, "bandwidth is -2.0; it is between 0.001 and 1000"),
        ({"slow_ranks": ((3, 0.0),)}, "factor of rank 3 is 0.0; it is between"),
    ],
)
def test_a_disturbance_that_cannot_be_is_refused(settings, message: str):
    with pytest.raises(ConfigError, match=message):
        Perturbation(**settings)
