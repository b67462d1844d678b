"""A rank does one thing at a time, and the recorder knows which."""

import itertools
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arachne.core.rank_log import trace_from_logs
from arachne.runtime.recorder import Message, Recorder


class CountingClock:
    """Every stamp is one second after the one before."""

    def __init__(self) -> None:
        self.now = 0

    def stamp(self):
        self.now += 1
        return -self.now

    def seconds(self, stamps):
        return [-float(stamp) for stamp in stamps]


class SetClock:
    """Shows what the test sets."""

    now_s = 0.0

    def stamp(self):
        return self.now_s

    def seconds(self, stamps):
        return list(stamps)


def recorder_of(rank=0, world_size=1, clock=None) -> Recorder:
    return Recorder(rank=rank, world_size=world_size, clock=clock or CountingClock())


def rows(log):
    return [
        (e.span.kind, e.span.launch, e.meeting, e.span.start_s, e.span.end_s) for e in log.events
    ]


def test_a_handoff_is_a_wait_until_its_sender_has_sent_it():
    clocks = [SetClock(), SetClock()]
    sender, receiver = (recorder_of(rank, 2, clock) for rank, clock in enumerate(clocks))
    with sender.launch(0):
        clocks[0].now_s = 3.0
        sender.sent(launch=1, meeting=-1)
        clocks[0].now_s = 5.0
    clocks[1].now_s = 1.0
    with receiver.launch(1):
        with receiver.arrival(-1):
            clocks[1].now_s = 4.0
        clocks[1].now_s = 6.0
    logs = [recorder.finish(step=0, planner="") for recorder in (sender, receiver)]
    assert [[e.span.start_s for e in log.events] for log in logs] == [[0.0, 3.0], [1.0, 1.0, 4.0]]
    trace = trace_from_logs(logs)
    spans = [span for span in trace.spans if span.duration_s]
    assert [(s.rank, s.kind, s.launch, s.start_s, s.end_s) for s in spans] == [
        (0, "compute", 0, 0.0, 5.0),
        (1, "wait", 1, 1.0, 3.0),
        (1, "handoff", 1, 3.0, 4.0),
        (1, "compute", 1, 4.0, 6.0),
    ]


def test_compute_is_what_remains_between_collectives():
    recorder = recorder_of()
    with recorder.doing("load"):
        pass
    with recorder.launch(4):
        with recorder.collective("all_to_all", (0, 1), 8, "float32"):
            pass
        with recorder.collective("all_gather", (0, 1), 8, "float32"):
            pass
    with recorder.collective("reduce_scatter", (0, 1), 8, "float32"):
        pass
    assert rows(recorder.finish(step=3, planner="p")) == [
        ("load", None, None, 1, 2),
        ("compute", 4, None, 3, 4),
        ("communicate", 4, 0, 4, 5),
        ("compute", 4, None, 5, 6),
        ("communicate", 4, 1, 6, 7),
        ("compute", 4, None, 7, 8),
        ("reduce", None, 0, 9, 10),
    ]


def test_meetings_count_from_zero_in_every_launch_and_every_step():
    recorder = recorder_of()
    for _ in range(2):
        for launch in (5, 2):
            with recorder.launch(launch), recorder.collective("x", (0, 1), 1, "float32"):
                pass
        with recorder.collective("x", (0, 1), 1, "float32"):
            pass
        log = recorder.finish(step=0, planner="")
        meetings = [(e.span.launch, e.meeting) for e in log.events if e.meeting is not None]
        assert meetings == [(5, 0), (2, 0), (None, 0)]
    assert recorder.finish(step=0, planner="").events == ()


@st.composite
def nested_work(draw, depth=0):
    """Lists of (kind or launch or collective, what happens inside)."""
    kinds = ["load", "optimizer", "collective"] + ["launch"] * (depth == 0)
    inside = nested_work(depth=depth + 1) if depth < 3 else st.just([])
    return draw(st.lists(st.tuples(st.sampled_from(kinds), inside), max_size=3))


def perform(recorder, work):
    for kind, inside in work:
        if kind == "launch":
            manager = recorder.launch(0)
        elif kind == "collective":
            manager = recorder.collective("x", (0, 1), 1, "float32")
        else:
            manager = recorder.doing(kind)
        with manager:
            perform(recorder, inside)


@given(work=nested_work())
def test_spans_cover_all_recorded_work_and_never_overlap(work):
    recorder = recorder_of()
    perform(recorder, work)
    spans = [event.span for event in recorder.finish(step=0, planner="").events]
    assert all(span.end_s > span.start_s for span in spans)
    gaps = [b.start_s - a.end_s for a, b in itertools.pairwise(spans)]
    assert all(gap >= 0 for gap in gaps)
    assert sum(gap > 0 for gap in gaps) == max(0, len(work) - 1), "gaps only between the outermost"


def test_an_error_inside_leaves_the_recorder_usable():
    recorder = recorder_of()
    with pytest.raises(ValueError, match="oops"), recorder.launch(0), recorder.doing("load"):
        raise ValueError("oops")
    with recorder.launch(1):
        pass
    assert [span[:2] for span in rows(recorder.finish(step=0, planner=""))] == [
        ("compute", 0),
        ("load", 0),
        ("compute", 0),
        ("compute", 1),
    ]


def test_launches_do_not_nest_and_a_step_does_not_end_inside_one():
    recorder = recorder_of()
    with recorder.launch(0):
        with pytest.raises(AssertionError, match="do not nest"), recorder.launch(1):
            pass
        with pytest.raises(AssertionError, match="outside all recorded work"):
            recorder.finish(step=0, planner="")


def test_the_ledger_is_kept_only_on_request():
    recorder = recorder_of()
    with recorder.collective("x", (0, 1), 1, "float32"):
        pass
    assert recorder.ledger == []
    recorder.keeps_ledger = True
    with recorder.launch(3), recorder.collective("y", (1, 2), 7, "bfloat16"):
        pass
    (record,) = recorder.ledger
    assert (record.launch, record.ranks, record.operation) == (3, (1, 2), "y")
    assert (record.num_elements, record.dtype) == (7, "bfloat16")


def test_what_is_issued_and_waited_for_later_computes_in_between():
    recorder = recorder_of()
    recorder.keeps_ledger = True
    message = Message(source=0, target=1, content="kv", num_elements=3)
    with recorder.launch(2):
        recorder.issued("exchange", (0, 1), 6, "float32", messages=(message,))
        assert recorder.ledger[-1].messages == (message,)
        with recorder.collective("all_to_all", (0, 1), 8, "float32"):
            pass
        with recorder.meeting():
            pass
    assert [record.operation for record in recorder.ledger] == ["exchange", "all_to_all"]
    assert rows(recorder.finish(step=0, planner="")) == [
        ("compute", 2, None, 1, 2),
        ("communicate", 2, 0, 2, 3),
        ("compute", 2, None, 3, 4),
        ("communicate", 2, 1, 4, 5),
        ("compute", 2, None, 5, 6),
    ]


def test_the_logs_of_two_ranks_tell_who_waited():
    logs = []
    for rank, (arrives_s, leaves_s) in enumerate([(2.0, 6.0), (5.0, 6.0)]):
        clock = SetClock()
        recorder = recorder_of(rank, 2, clock)
        with recorder.launch(0):
            clock.now_s = arrives_s
            with recorder.collective("all_to_all", (0, 1), 1, "float32"):
                clock.now_s = leaves_s
            clock.now_s = 7.0
        with recorder.collective("reduce_scatter", (0, 1), 1, "float32"):
            clock.now_s = 8.0
        logs.append(recorder.finish(step=1, planner="p"))
    trace = trace_from_logs(logs)
    assert [(s.rank, s.kind, s.start_s, s.end_s, s.launch) for s in trace.spans] == [
        (0, "compute", 0.0, 2.0, 0),
        (0, "wait", 2.0, 5.0, 0),
        (0, "communicate", 5.0, 6.0, 0),
        (0, "compute", 6.0, 7.0, 0),
        (0, "reduce", 7.0, 8.0, None),
        (1, "compute", 0.0, 5.0, 0),
        (1, "communicate", 5.0, 6.0, 0),
        (1, "compute", 6.0, 7.0, 0),
        (1, "reduce", 7.0, 8.0, None),
    ]
    assert trace.idle_ratio == pytest.approx(3 / 16)


class Issuing(torch.autograd.Function):
    """Issues a collective in its backward, and runs another backward in it, so deep."""

    @staticmethod
    def forward(ctx, values, recorder, depth, threads):
        ctx.saved = recorder, depth, threads
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):  # pyright: ignore[reportIncompatibleMethodOverride]
        recorder, depth, threads = ctx.saved
        threads.add(threading.current_thread().name)
        issue(recorder)
        if depth:
            with torch.enable_grad():
                run_backward(recorder, depth - 1, threads)
        return gradient, None, None, None


def issue(recorder):
    recorder.issued("all_to_all", (0, 1), 4, "float32")


def hand_over(recorder):
    recorder.handed(Message(source=0, target=1, content="latents", num_elements=4))


def run_backward(recorder, depth, threads):
    values = torch.ones(2, requires_grad=True)
    Issuing.apply(values, recorder, depth, threads).sum().backward()


def raised_in_thread(work, recorder):
    """What `work` raises in a thread that prefetches."""
    with ThreadPoolExecutor(thread_name_prefix="prefetch") as pool:
        return pool.submit(work, recorder).exception()


@pytest.mark.parametrize(("work", "name"), [(issue, "all_to_all"), (hand_over, "handoff")])
def test_no_other_thread_issues_collectives_and_both_are_named(work, name):
    recorder = recorder_of()
    work(recorder)
    message = rf"issued '{name}' in thread 'prefetch_0', .* belong to thread 'MainThread'"
    assert re.search(message, str(raised_in_thread(work, recorder)))


def write_threads_of_backward():
    """How many threads issued, and what was issued; beyond 60 backward passes within each other
    autograd goes on in a thread of its own, as it does on GPUs."""
    recorder, threads = recorder_of(), set()
    recorder.keeps_ledger = True
    run_backward(recorder, 65, threads)
    sys.stdout.write(f"{len(threads)} {len(recorder.ledger)}")
    sys.stdout.flush()
    os._exit(0)  # torch's own end of autograd's threads may abort


def test_autograd_may_issue_in_a_thread_of_its_own():
    # In a new interpreter: a process in which autograd has threads can neither be forked nor trust
    # its autograd after having been.
    code = f"from {__name__} import {write_threads_of_backward.__name__} as run; run()"
    root = Path(__file__).parents[2]
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE, text=True, check=True
    )
    assert found.stdout.split() == ["2", "66"]
