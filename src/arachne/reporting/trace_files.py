"""Trace files: what the ranks logged, and the Chrome trace-event form that Perfetto loads."""

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from arachne.core.new_file import written_aside
from arachne.core.placed_plan import PlacedPlan
from arachne.core.rank_log import RankLog, trace_from_logs
from arachne.core.trace import Span, Trace
from arachne.reporting.json_lines import JsonLines, read_json_lines, steps_in
from arachne.reporting.launch_text import planned_launch, span_launch_name
from arachne.reporting.run_files import TRACES, rank_log_path

_MEASURED_PID = 1
_MODELLED_PID = 2
_STEPS_TID = 0


def read_rank_logs(run_dir: Path, *, steps: Collection[int] | None = None) -> JsonLines[RankLog]:
    """The logs of all ranks, those of `steps` or all, with notes on torn lines.

    Raises:
        DataError: A line has another shape.
    """
    values: list[RankLog] = []
    notes: list[str] = []
    for path in sorted((run_dir / TRACES).glob("rank-*.jsonl")):
        lines = read_json_lines(path, RankLog, steps=steps)
        values += lines.values
        notes += lines.notes
    return JsonLines(values=tuple(values), notes=tuple(notes))


def traced_steps(run_dir: Path) -> tuple[int, ...]:
    """Steps that rank 0 logged, ascending; reads no spans."""
    return steps_in(rank_log_path(run_dir, 0))


def joined_traces(logs: Sequence[RankLog]) -> dict[int, Trace]:
    """One trace for each step of which all ranks are there, in order of step.

    Where a resumed run repeated a step the later logs count, and rank 0's latest log tells how
    many ranks there were then.
    """
    world_size: dict[int, int] = {}
    found: dict[int, dict[tuple[int, int], RankLog]] = defaultdict(dict)
    for log in logs:
        found[log.step][log.world_size, log.rank] = log
        if log.rank == 0:
            world_size[log.step] = log.world_size
    traces: dict[int, Trace] = {}
    for step, size in sorted(world_size.items()):
        members = [log for (of, _), log in sorted(found[step].items()) if of == size]
        if members and len(members) == size:
            traces[step] = trace_from_logs(members)
    return traces


def write_perfetto(
    path: Path, traces: Sequence[Trace], plans: Mapping[int, PlacedPlan] | None = None
) -> None:
    """Write traces as Chrome trace events: open the file at https://ui.perfetto.dev.

    Measured and modelled traces are two processes; each has a row of steps and a row for each
    rank. Steps follow one another, and both kinds of one step begin together. A launch is a slice
    named by `plans` (by step), and what happened in it lies inside.
    """
    with written_aside(path) as partial, partial.open("w", encoding="utf-8") as file:
        json.dump({"displayTimeUnit": "ms", "traceEvents": perfetto_events(traces, plans)}, file)


def perfetto_events(
    traces: Sequence[Trace], plans: Mapping[int, PlacedPlan] | None = None
) -> list[dict[str, Any]]:
    """The `traceEvents` of `write_perfetto`; times are microseconds."""
    plans = plans or {}
    events: list[dict[str, Any]] = []
    for pid, name in ((_MEASURED_PID, "measured"), (_MODELLED_PID, "modelled")):
        shown = [trace for trace in traces if _pid(trace) == pid]
        if shown:
            events += _names(pid, name, max(trace.world_size for trace in shown))
    length_ns: dict[int, int] = defaultdict(int)
    for trace in traces:
        length_ns[trace.step] = max(length_ns[trace.step], _ns(trace.iteration_s))
    begin_ns = 0
    for step, length in sorted(length_ns.items()):
        for trace in traces:
            if trace.step == step:
                events += _trace_events(trace, plans.get(step), begin_ns)
        begin_ns += length
    return events


def _pid(trace: Trace) -> int:
    return _MEASURED_PID if trace.is_measured else _MODELLED_PID


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _names(pid: int, name: str, world_size: int) -> Iterator[dict[str, Any]]:
    yield _metadata("process_name", pid, _STEPS_TID, {"name": name})
    yield _metadata("process_sort_index", pid, _STEPS_TID, {"sort_index": pid})
    rows = ["steps", *(f"rank {rank}" for rank in range(world_size))]
    for tid, row in enumerate(rows):
        yield _metadata("thread_name", pid, tid, {"name": row})
        yield _metadata("thread_sort_index", pid, tid, {"sort_index": tid})


def _metadata(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}


def _slice(trace: Trace, tid: int, begin_ns: int, end_ns: int, **named: Any) -> dict[str, Any]:
    """One complete event; whole nanoseconds keep inner slices inside outer ones."""
    return {
        "ph": "X",
        "pid": _pid(trace),
        "tid": tid,
        "ts": begin_ns / 1e3,
        "dur": (end_ns - begin_ns) / 1e3,
        **named,
    }


def _trace_events(trace: Trace, plan: PlacedPlan | None, begin_ns: int) -> Iterator[dict[str, Any]]:
    yield _slice(
        trace,
        _STEPS_TID,
        begin_ns,
        begin_ns + _ns(trace.iteration_s),
        name=f"step {trace.step}",
        cat="step",
        args={"planner": trace.planner, "idle_ratio": trace.idle_ratio},
    )
    inside: dict[tuple[int, int], list[Span]] = defaultdict(list)
    for span in trace.spans:
        if span.launch is not None:
            inside[span.rank, span.launch].append(span)
    for (rank, index), spans in inside.items():
        launch = planned_launch(plan, index)
        yield _slice(
            trace,
            rank + 1,
            begin_ns + min(_ns(span.start_s) for span in spans),
            begin_ns + max(_ns(span.end_s) for span in spans),
            name=span_launch_name(plan, index),
            cat="launch",
            args={"launch": index}
            if launch is None
            else {
                "launch": index,
                "slots": list(launch.cascade.slots),
                "tokens_per_clip": launch.cascade.num_tokens,
                "ranks": list(launch.ranks),
                "modelled_ms": launch.duration_s * 1e3,
            },
        )
    for span in trace.spans:
        yield _slice(
            trace,
            span.rank + 1,
            begin_ns + _ns(span.start_s),
            begin_ns + _ns(span.end_s),
            name=span.kind,
            cat=span.kind,
            args={"step": trace.step},
        )
