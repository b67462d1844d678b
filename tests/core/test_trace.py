"""Traces and their idle ratio."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arachne.core.trace import BUSY_KINDS, Span, Trace

kinds = st.sampled_from(["compute", "communicate", "wait", "load", "reduce", "optimizer"])


@st.composite
def traces(draw) -> Trace:
    """Ranks that do one thing after another, without a gap."""
    world_size = draw(st.integers(1, 4))
    spans: list[Span] = []
    for rank in range(world_size):
        now_s = 0.0
        for kind, length_s in draw(st.lists(st.tuples(kinds, st.floats(0, 10)), max_size=6)):
            spans.append(Span(rank=rank, kind=kind, start_s=now_s, end_s=now_s + length_s))
            now_s += length_s
    return made(spans, world_size)


def made(spans: list[Span], world_size: int) -> Trace:
    return Trace(step=0, planner="p", world_size=world_size, is_measured=True, spans=tuple(spans))


@given(trace=traces())
def test_the_idle_ratio_is_a_share_and_agrees_with_the_ranks_busy_seconds(trace):
    assert 0.0 <= trace.idle_ratio <= 1.0
    available_s = trace.world_size * trace.iteration_s
    busy_s = sum(trace.busy_s(rank) for rank in range(trace.world_size))
    assert (1.0 - trace.idle_ratio) * available_s == pytest.approx(
        busy_s if trace.iteration_s else 0.0
    )


def test_rounding_makes_no_idle_ratio_negative():
    ends_s = (0.0, 0.1, 0.3, 0.9)  # 0.1 + 0.2 + 0.6 is above 0.9 in floating point
    spans = [
        Span(rank=0, kind="compute", start_s=start_s, end_s=end_s)
        for start_s, end_s in pairwise(ends_s)
    ]
    assert str(made(spans, world_size=1).idle_ratio) == "0.0"


def test_waiting_for_ranks_or_data_is_idle_and_moving_bytes_is_busy():
    assert {"compute", "communicate", "handoff", "reduce", "optimizer"} == BUSY_KINDS
    spans = [
        Span(rank=0, kind="load", start_s=0.0, end_s=1.0),
        Span(rank=0, kind="compute", start_s=1.0, end_s=3.0, launch=0),
        Span(rank=0, kind="wait", start_s=3.0, end_s=3.5, launch=0),
        Span(rank=0, kind="communicate", start_s=3.5, end_s=4.0, launch=0),
    ]
    trace = made(spans, world_size=2)
    assert trace.busy_s(0) == 2.5
    assert trace.busy_s(1) == 0.0
    assert trace.idle_ratio == pytest.approx(1 - 2.5 / 8)


def test_a_rank_without_spans_is_idle_all_the_time():
    span = Span(rank=0, kind="compute", start_s=0.0, end_s=1.0)
    assert made([span], world_size=4).idle_ratio == pytest.approx(0.75)


@pytest.mark.parametrize("spans", [[], [Span(rank=0, kind="compute", start_s=0.0, end_s=0.0)]])
def test_a_trace_that_takes_no_time_is_not_idle(spans):
    trace = made(spans, world_size=2)
    assert trace.iteration_s == 0.0
    assert trace.idle_ratio == 0.0


def test_a_launch_lasts_from_its_first_span_to_its_last_over_all_ranks():
    spans = [
        Span(rank=0, kind="compute", start_s=1.0, end_s=2.0, launch=5),
        Span(rank=0, kind="reduce", start_s=2.0, end_s=9.0),
        Span(rank=1, kind="wait", start_s=0.5, end_s=3.0, launch=5),
    ]
    trace = made(spans, world_size=2)
    assert trace.launch_interval_s(5) == (0.5, 3.0)
    assert trace.launch_interval_s(6) is None
    assert spans[0].duration_s == 1.0
