import pytest

from arachne.trainer.schedule import learning_rate
from arachne.trainer.settings.optimizer import OptimizerSettings


def test_the_rate_rises_in_equal_steps_to_its_full_value_after_the_warm_up():
    settings = OptimizerSettings(lr=1.0, warmup_steps=3)
    rates = [learning_rate(settings, step) for step in range(6)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0])


def test_without_a_warm_up_the_rate_is_full_from_the_first_step():
    settings = OptimizerSettings(lr=0.1, warmup_steps=0)
    assert [learning_rate(settings, step) for step in (0, 1, 10**6)] == [0.1, 0.1, 0.1]
