"""The logs of all ranks tell how much of each collective was waiting."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arachne.core.rank_log import RankEvent, RankLog, trace_from_logs
from arachne.core.trace import Span


def made_log(rank: int, *events: RankEvent, world_size: int = 2) -> RankLog:
    return RankLog(step=7, planner="p", rank=rank, world_size=world_size, events=events)


def event(rank, kind, start_s, end_s, launch=None, meeting=None) -> RankEvent:
    span = Span(rank=rank, kind=kind, start_s=start_s, end_s=end_s, launch=launch)
    return RankEvent(span=span, meeting=meeting)


def shape(trace) -> list[tuple]:
    return [(span.rank, span.kind, span.start_s, span.end_s) for span in trace.spans]


def test_who_comes_first_waits_until_the_last_member_is_there():
    trace = trace_from_logs(
        [
            made_log(0, event(0, "communicate", 1.0, 5.0, launch=0, meeting=0)),
            made_log(1, event(1, "communicate", 4.0, 5.0, launch=0, meeting=0)),
        ]
    )
    assert shape(trace) == [
        (0, "wait", 0.0, 3.0),
        (0, "communicate", 3.0, 4.0),
        (1, "communicate", 3.0, 4.0),
    ]
    assert all(span.launch == 0 for span in trace.spans)
    assert (trace.step, trace.planner, trace.world_size) == (7, "p", 2)
    assert trace.is_measured


def test_the_same_meeting_number_in_another_launch_is_another_meeting():
    trace = trace_from_logs(
        [
            made_log(0, event(0, "communicate", 1.0, 2.0, launch=0, meeting=0)),
            made_log(1, event(1, "communicate", 1.5, 2.0, launch=1, meeting=0)),
        ]
    )
    assert [span.kind for span in trace.spans] == ["communicate", "communicate"]


def test_the_reduction_outside_launches_is_a_meeting_too():
    trace = trace_from_logs(
        [
            made_log(0, event(0, "reduce", 0.0, 3.0, meeting=0)),
            made_log(
                1, event(1, "compute", 0.0, 2.0, launch=0), event(1, "reduce", 2.0, 3.0, meeting=0)
            ),
        ]
    )
    assert shape(trace)[:2] == [(0, "wait", 0.0, 2.0), (0, "reduce", 2.0, 3.0)]
    assert trace.idle_ratio == pytest.approx(2 / 6)


def test_a_member_that_left_before_the_last_one_came_only_waited():
    """Clocks of ranks agree only to some microseconds."""
    trace = trace_from_logs(
        [
            made_log(0, event(0, "communicate", 1.0, 2.0, launch=0, meeting=0)),
            made_log(1, event(1, "communicate", 2.5, 3.0, launch=0, meeting=0)),
        ]
    )
    assert shape(trace)[0] == (0, "wait", 0.0, 1.0)


times = st.floats(0, 10)
plain_or_meeting = st.tuples(
    st.sampled_from(["compute", "communicate", "load"]),
    times,
    times,
    st.sampled_from([None, 0, 1]),
)


@given(rows=st.lists(st.lists(plain_or_meeting, max_size=5), min_size=1, max_size=4))
def test_splitting_keeps_every_second_and_makes_no_new_work(rows):
    logs = [
        made_log(
            rank,
            *(
                event(rank, kind, start_s, start_s + length_s, 0, meeting)
                for kind, start_s, length_s, meeting in row
            ),
            world_size=len(rows),
        )
        for rank, row in enumerate(rows)
    ]
    trace = trace_from_logs(logs)
    assert list(trace.spans) == sorted(trace.spans, key=lambda s: (s.rank, s.start_s, s.end_s))
    for rank, log in enumerate(logs):
        logged_s = sum(e.span.duration_s for e in log.events)
        kept = [span for span in trace.spans if span.rank == rank]
        assert sum(span.duration_s for span in kept) == pytest.approx(logged_s)
        for kind in ("compute", "communicate", "load"):
            before_s = sum(e.span.duration_s for e in log.events if e.span.kind == kind)
            after_s = sum(span.duration_s for span in kept if span.kind == kind)
            assert after_s <= before_s + 1e-9


@given(shift=st.randoms(use_true_random=False))
def test_the_order_of_the_logs_does_not_matter(shift):
    logs = [
        made_log(r, event(r, "communicate", float(r), 9.0, 0, 0), world_size=4) for r in range(4)
    ]
    shuffled = list(logs)
    shift.shuffle(shuffled)
    assert trace_from_logs(shuffled) == trace_from_logs(logs)


@given(origin_s=st.floats(-1e6, 1e6))
def test_a_trace_starts_at_zero_whatever_the_clocks_say(origin_s):
    def logs(from_s: float) -> list[RankLog]:
        return [
            made_log(0, event(0, "communicate", from_s, from_s + 4.0, launch=0, meeting=0)),
            made_log(1, event(1, "communicate", from_s + 2.0, from_s + 4.0, launch=0, meeting=0)),
        ]

    trace, expected = trace_from_logs(logs(origin_s)), trace_from_logs(logs(0.0))
    assert min(span.start_s for span in trace.spans) == 0.0
    for span, wanted in zip(trace.spans, expected.spans, strict=True):
        assert span.kind == wanted.kind
        assert span.start_s == pytest.approx(wanted.start_s, abs=1e-6)
        assert span.end_s == pytest.approx(wanted.end_s, abs=1e-6)


def test_a_span_that_meets_nobody_stays_as_it_is():
    alone = event(0, "compute", 0.0, 1.0, launch=2)
    trace = trace_from_logs([replace(made_log(0, alone), world_size=1)])
    assert trace.spans == (alone.span,)
