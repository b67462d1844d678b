import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arachne.core.errors import ConfigError
from arachne.trainer.schedule import learning_rate
from arachne.trainer.settings.optimizer import OptimizerSettings
from tests.trainer.tiny_runs import tiny_config


def rates(settings, num_steps):
    return [learning_rate(settings, step, num_steps) for step in range(num_steps)]


def test_the_rate_rises_in_equal_steps_to_its_full_value_after_the_warm_up():
    settings = OptimizerSettings(lr=1.0, warmup_steps=3)
    assert rates(settings, 6) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0])


def test_without_a_warm_up_the_rate_is_full_from_the_first_step():
    settings = OptimizerSettings(lr=0.1, warmup_steps=0)
    assert [learning_rate(settings, step, 10**7) for step in (0, 1, 10**6)] == [0.1, 0.1, 0.1]


def test_the_cosine_is_that_of_torch():
    settings = OptimizerSettings(lr=2.0, schedule="cosine", min_lr_share=0.1)
    sgd = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    expected = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, T_max=7, eta_min=0.2)
    for rate in rates(settings, 7):
        assert rate == pytest.approx(expected.get_last_lr()[0], rel=1e-12)
        sgd.step()
        expected.step()


def test_a_line_falls_in_equal_steps_and_ends_one_step_before_its_lowest_share():
    settings = OptimizerSettings(lr=1.0, schedule="linear", warmup_steps=1, min_lr_share=0.2)
    assert rates(settings, 5) == pytest.approx([0.5, 1.0, 0.8, 0.6, 0.4])


def test_wsd_stays_and_then_falls_in_its_last_steps():
    settings = OptimizerSettings(lr=1.0, schedule="wsd", warmup_steps=1, decay_steps=4)
    assert rates(settings, 8) == pytest.approx([0.5, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25])


def test_a_longer_run_moves_the_decay_of_wsd_and_nothing_before_it():
    settings = OptimizerSettings(schedule="wsd", warmup_steps=2, decay_steps=3)
    assert rates(settings, 10)[:7] == rates(settings, 20)[:7]
    assert rates(settings, 10)[7:] == rates(settings, 20)[17:]


@given(
    schedule=st.sampled_from(["cosine", "linear", "wsd"]),
    warmup_steps=st.integers(0, 20),
    decay_steps=st.integers(1, 20),
    lowest=st.floats(0.0, 1.0),
)
def test_after_the_warm_up_rates_never_rise_and_stay_above_the_lowest_share(
    schedule, warmup_steps, decay_steps, lowest
):
    settings = OptimizerSettings(
        lr=3.0,
        schedule=schedule,
        warmup_steps=warmup_steps,
        decay_steps=decay_steps if schedule == "wsd" else 0,
        min_lr_share=lowest,
    )
    found = rates(settings, warmup_steps + decay_steps)
    falling = found[warmup_steps:]
    assert falling[0] == 3.0
    assert all(a >= b for a, b in pairwise(falling))
    assert falling[-1] >= 3.0 * lowest or math.isclose(falling[-1], 3.0 * lowest)
    assert sorted(found[:warmup_steps]) == found[:warmup_steps]
    assert all(rate < 3.0 for rate in found[:warmup_steps])


def test_a_decay_without_steps_or_steps_without_a_decay_are_refused():
    with pytest.raises(ConfigError, match="decay_steps is 0 with schedule 'wsd'"):
        OptimizerSettings(schedule="wsd")
    with pytest.raises(ConfigError, match="decay_steps is 5 with schedule 'cosine'"):
        OptimizerSettings(schedule="cosine", decay_steps=5)


def test_a_schedule_longer_than_the_run_is_refused(tmp_path):
    settings = OptimizerSettings(schedule="wsd", warmup_steps=3, decay_steps=4)
    settings.check_steps(7)
    with pytest.raises(ConfigError, match=r"run\.steps is 6, but .* are 3 \+ 4"):
        settings.check_steps(6)
    OptimizerSettings(warmup_steps=30).check_steps(6)
    config = tiny_config(tmp_path, tmp_path / "run", steps=6)
    with pytest.raises(ConfigError, match=r"run\.steps is 6"):
        replace(config, optimizer=settings)
