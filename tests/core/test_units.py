"""Figures as people read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arachne.core.units import (
    bytes_text,
    count_text,
    names_text,
    number_text,
    seconds_text,
    step_text,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 us"),
        (850e-6, "850 us"),
        (0.0123, "12.3 ms"),
        (0.5, "500 ms"),
        (0.9996, "1.00 s"),
        (0.0009996, "1 ms"),
        (1.5, "1.50 s"),
        (59.99, "59.99 s"),
        (59.996, "1 min 00 s"),
        (125, "2 min 05 s"),
        (3599.7, "1 h 00 min"),
        (3 * 3600 + 7 * 60 + 50, "3 h 07 min"),
        (30 * 3600, "30 h 00 min"),
        (-0.25, "-250 ms"),
    ],
)
def test_durations(seconds, text):
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (1_500_000, "1.5 MB"),
        (999_999, "1 MB"),
        (80e9, "80 GB"),
        (26.2e9, "26.2 GB"),
        (5e15, "5,000 TB"),
        (-1500, "-1.5 kB"),
    ],
)
def test_sizes(num_bytes, text):
    assert bytes_text(num_bytes) == text


@given(seconds=st.floats(0, 1e7), num_bytes=st.floats(0, 1e18))
def test_no_figure_is_written_in_powers_of_ten(seconds, num_bytes):
    for text in (seconds_text(seconds), bytes_text(num_bytes)):
        assert "e+" not in text
        assert "e-" not in text
        assert len(text) <= 16


def test_counts_have_the_right_noun():
    assert count_text(1, "clip") == "1 clip"
    assert count_text(0, "clip") == "0 clips"
    assert count_text(75_600, "token") == "75,600 tokens"


def test_steps_are_named_from_1_as_progress_counts_them():
    assert [step_text(index) for index in (0, 811)] == ["step 1", "step 812"]


def test_of_many_names_the_first_are_told():
    assert [names_text(list("abcde")[:count]) for count in (0, 1, 3, 5)] == [
        *("nothing", "a", "a, b, c"),
        "a, b, c and 2 more",
    ]


@pytest.mark.parametrize(
    ("number", "text"), [(1, "1"), (1.0, "1"), (19570.31, "19570.31"), (1000.0001, "1000.0001")]
)
def test_a_number_that_is_compared_keeps_its_digits(number: float, text: str) -> None:
    assert number_text(number) == text
