"""How long a run still takes."""

import pytest

from arachne.cli.pace import Pace


def test_the_first_step_counts_as_it_was_measured():
    assert Pace().time_left_s(10, now_s=100.0, step_s=2.0) == 20.0


def test_what_lies_between_steps_counts_too():
    pace = Pace()
    pace.time_left_s(9, now_s=0.0, step_s=1.0)
    assert pace.time_left_s(8, now_s=3.0, step_s=1.0) == pytest.approx(24.0)


def test_only_the_newest_fifty_steps_count():
    pace = Pace()
    for step in range(51):
        pace.time_left_s(0, now_s=100.0 * step, step_s=100.0)
    for step in range(1, 51):
        left_s = pace.time_left_s(1, now_s=5000.0 + step, step_s=1.0)
    assert left_s == pytest.approx(1.0)
