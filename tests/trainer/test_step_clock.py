"""Laps are from end to end, without what is paused."""

from contextlib import suppress

import pytest

from arachne.trainer import step_clock
from arachne.trainer.step_clock import StepClock


@pytest.fixture
def now_s(monkeypatch) -> list[float]:
    """The time that clocks read, as a list of one number."""
    now_s = [10.0]
    monkeypatch.setattr(step_clock, "perf_counter", lambda: now_s[0])
    return now_s


def test_every_second_belongs_to_one_lap(now_s: list[float]):
    clock = StepClock()
    now_s[0] = 12.0
    assert clock.lap() == 2.0
    now_s[0] = 12.5
    assert clock.lap() == 0.5
    assert clock.lap() == 0.0


def test_pauses_belong_to_none(now_s: list[float]):
    clock = StepClock()
    now_s[0] = 11.0
    with suppress(KeyError), clock.paused():
        now_s[0] = 14.0
        raise KeyError
    now_s[0] = 14.5
    assert clock.lap() == 1.5
    now_s[0] = 15.0
    assert clock.lap() == 0.5
