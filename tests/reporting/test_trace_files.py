"""Trace files, and the form that Perfetto loads."""

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from arachne.core.rank_log import trace_from_logs
from arachne.core.trace import Span, Trace
from arachne.reporting.modelled_trace import modelled_trace
from arachne.reporting.run_files import RunWriter, rank_log_path
from arachne.reporting.trace_files import (
    joined_traces,
    perfetto_events,
    read_rank_logs,
    traced_steps,
    write_perfetto,
)
from tests.reporting.made_runs import made_batch, made_logs, made_plan, write_made_run


def read_traces(run_dir: Path, steps: set[int] | None = None) -> dict[int, Trace]:
    return joined_traces(read_rank_logs(run_dir, steps=steps).values)


def test_each_step_becomes_the_trace_of_its_ranks_logs(tmp_path: Path):
    run_dir = write_made_run(tmp_path / "run", num_steps=3)
    traces = read_traces(run_dir)
    assert list(traces) == [0, 1, 2]
    assert traces[1] == trace_from_logs(made_logs(made_plan(made_batch(1))))
    assert traced_steps(run_dir) == (0, 1, 2)
    assert list(read_traces(run_dir, steps={2})) == [2]


def test_a_step_that_one_rank_did_not_log_is_left_out(tmp_path: Path):
    run_dir = write_made_run(tmp_path / "run", num_steps=3)
    path = rank_log_path(run_dir, 3)
    path.write_bytes(path.read_bytes()[:-40])
    assert list(read_traces(run_dir)) == [0, 1]
    assert "rank-00003.jsonl: line 3 is torn" in read_rank_logs(run_dir).notes[0]


def test_a_step_repeated_on_fewer_ranks_is_that_of_the_later_run(tmp_path: Path):
    run_dir = tmp_path / "run"
    before, after = (made_logs(made_plan(made_batch(7), size)) for size in (4, 2))
    for log in (*before, *after):
        RunWriter(run_dir=run_dir).write_rank_log(log)
    trace = read_traces(run_dir)[7]
    assert trace == trace_from_logs(after)
    assert trace.world_size == 2


def test_a_repeated_step_takes_the_later_log_of_each_rank():
    first, again = (made_logs(made_plan(made_batch(7)), seed=seed) for seed in (0, 1))
    assert first != again
    assert joined_traces([*first, *again])[7] == trace_from_logs(again)


def test_a_run_without_traces_has_none(tmp_path: Path):
    assert read_traces(tmp_path) == {}
    assert traced_steps(tmp_path) == ()


@pytest.fixture(scope="module")
def events() -> list[dict]:
    traces: list[Trace] = []
    plans = {}
    for step in (4, 5):
        plan = plans[step] = made_plan(made_batch(step))
        traces += [trace_from_logs(made_logs(plan)), modelled_trace(plan, plan.makespan_s + 0.01)]
    return perfetto_events(traces, plans)


def test_perfetto_events_have_the_fields_of_the_trace_event_format(events):
    assert {event["ph"] for event in events} == {"X", "M"}
    for event in events:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            assert isinstance(event["cat"], str)
        else:
            assert event["name"] in {
                "process_name",
                "process_sort_index",
                "thread_name",
                "thread_sort_index",
            }


def test_perfetto_rows_are_named_after_ranks_and_processes_after_what_they_show(events):
    named = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    assert [named[1, tid] for tid in range(5)] == ["steps", *(f"rank {r}" for r in range(4))]
    processes = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert processes == ["measured", "modelled"]


def test_perfetto_slices_of_a_row_are_nested_or_apart(events):
    rows = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            begin_ns = round(event["ts"] * 1e3)
            rows[event["pid"], event["tid"]].append(
                (begin_ns, begin_ns + round(event["dur"] * 1e3))
            )
    for slices in rows.values():
        ends: list[int] = []
        for begin, end in sorted(slices, key=lambda s: (s[0], -s[1])):
            while ends and ends[-1] <= begin:
                ends.pop()
            assert not ends or end <= ends[-1]
            ends.append(end)


def test_perfetto_launches_are_named_by_shape_clips_and_degree(events):
    launches = [event for event in events if event.get("cat") == "launch"]
    plan = made_plan(made_batch(4))
    first = plan.launches[0]
    assert launches[0]["name"] == f"dit {first.cascade.bucket} ×1 @2"
    assert launches[0]["args"]["ranks"] == [0, 1]


def test_perfetto_steps_follow_one_another_and_both_kinds_begin_together(events):
    begins = {(e["pid"], e["name"]): (e["ts"], e["dur"]) for e in events if e.get("cat") == "step"}
    assert begins[1, "step 4"][0] == begins[2, "step 4"][0] == 0
    assert begins[1, "step 5"][0] == begins[2, "step 5"][0]
    longest = max(begins[1, "step 4"][1], begins[2, "step 4"][1])
    assert begins[1, "step 5"][0] == pytest.approx(longest)


def test_the_perfetto_file_is_strict_json_with_microseconds(tmp_path: Path):
    span = Span(rank=0, kind="compute", start_s=0.5, end_s=0.75, launch=3)
    trace = Trace(step=0, planner="p", world_size=1, is_measured=True, spans=(span,))
    path = tmp_path / "trace.json"
    write_perfetto(path, [trace, replace(trace, step=1, spans=())])
    table = json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)
    (launch,) = [e for e in table["traceEvents"] if e.get("cat") == "launch"]
    assert (launch["name"], launch["ts"], launch["dur"]) == ("launch 3", 500_000.0, 250_000.0)
