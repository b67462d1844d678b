"""The page's charts as plotly figures: `data` and `layout`, made without importing plotly.

Each function returns None where the run has nothing to draw.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from html import escape
from statistics import mean

from arachne.core.bucket import Bucket
from arachne.core.placed_plan import PlacedPlan
from arachne.core.trace import BUSY_KINDS, SpanKind, Trace
from arachne.core.units import seconds_text
from arachne.reporting.chart_parts import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    Figure,
    axes_layout,
    line_trace,
    rounded,
)
from arachne.reporting.comparison import Strategy
from arachne.reporting.launch_text import launch_name
from arachne.reporting.run_files import Metrics, StepMetrics
from arachne.reporting.shape_colours import Paint

_MAX_LAUNCHES = 4000


def loss_figure(metrics: Metrics) -> Figure | None:
    """Training loss of each step, its running mean once there are 30 steps, and validation loss."""
    train = [(row.step, row.loss) for row in metrics.train if row.loss is not None]
    validation = [(row.step, row.loss) for row in metrics.validation if row.loss is not None]
    if len(train) + len(validation) < 2:
        return None
    is_long = len(train) >= 30
    data: list[Figure] = []
    if train:
        data.append(line_trace(train, "training", BLUE, width=1.2 if is_long else 2.2))
        data[0]["opacity"] = 0.65 if is_long else 1.0
    if is_long:
        window = max(5, len(train) // 20)
        data.append(
            line_trace(_running_mean(train, window), f"mean of {window} steps", BLUE, width=2.6)
        )
    if validation:
        data.append(line_trace(validation, "validation", ORANGE, width=2.2, has_markers=True))
    return {"data": data, "layout": axes_layout("step", "loss", has_legend=len(data) > 1)}


def idle_figure(metrics: Metrics) -> Figure | None:
    """Idle ratio of each step, in per cent."""
    points = [
        (row.step, 100 * row.idle_ratio) for row in metrics.train if row.idle_ratio is not None
    ]
    if len(points) < 2:
        return None
    line = line_trace(points, "idle ratio", GREEN, width=2.0)
    line |= {"fill": "tozeroy", "fillcolor": "rgba(0, 158, 115, 0.14)"}
    layout = axes_layout("step", "idle ratio (%)", has_legend=False)
    layout["yaxis"] |= {"rangemode": "tozero"}
    return {"data": [line], "layout": layout}


def step_time_figure(metrics: Metrics) -> Figure | None:
    """Measured and modelled seconds of each step."""
    series: list[Figure] = []
    for name, colour, pick in (("measured", BLUE, _measured_s), ("modelled", ORANGE, _modelled_s)):
        points = [(row.step, value) for row in metrics.train if (value := pick(row)) is not None]
        if len(points) >= 2:
            series.append(line_trace(points, name, colour, width=2.0))
    if not series:
        return None
    layout = axes_layout("step", "step time (s)", has_legend=True)
    layout["yaxis"] |= {"rangemode": "tozero"}
    return {"data": series, "layout": layout}


def balance_figure(traces: Sequence[Trace]) -> Figure | None:
    """Mean seconds per step that each rank was busy, waited for others, and waited for data."""
    if not traces:
        return None
    world_size = traces[-1].world_size
    alike = [trace for trace in traces if trace.world_size == world_size]
    totals: dict[str, list[float]] = {name: [0.0] * world_size for name in ("busy", "wait", "load")}
    for trace in alike:
        for span in trace.spans:
            totals[_activity(span.kind)][span.rank] += span.duration_s / len(alike)
    data: list[Figure] = []
    for name, label, colour in (
        ("busy", "busy", BLUE),
        ("wait", "waiting for other ranks", "rgba(148, 156, 170, 0.55)"),
        ("load", "waiting for data", ORANGE),
    ):
        if any(totals[name]):
            data.append(
                {
                    "type": "bar",
                    "name": label,
                    "x": list(range(world_size)),
                    "y": [rounded(1e3 * value) for value in totals[name]],
                    "marker": {"color": colour},
                    "hovertemplate": "rank %{x}: %{y:.4~g} ms",
                }
            )
    layout = axes_layout("rank", "mean time per step (ms)", has_legend=True)
    layout |= {"barmode": "stack", "bargap": 0.25 if world_size <= 64 else 0}
    layout["legend"] |= {"traceorder": "normal"}
    layout["xaxis"] |= {"dtick": max(1, -(-world_size // 16)), "tick0": 0}
    return {"data": data, "layout": layout}


def _activity(kind: SpanKind) -> str:
    return "busy" if kind in BUSY_KINDS else kind


def prediction_figure(
    traces: Mapping[int, Trace],
    plans: Mapping[int, PlacedPlan],
    paints: Mapping[Bucket, Paint],
) -> Figure | None:
    """Measured against predicted duration of each launch, coloured by shape; the line is truth."""
    points: dict[Bucket, list[tuple[float, float, str]]] = defaultdict(list)
    num_points = 0
    for step, trace in traces.items():
        plan = plans.get(step)
        if plan is None or num_points >= _MAX_LAUNCHES:
            continue
        for index, measured_s in _launch_durations(trace).items():
            if index < len(plan.launches) and plan.launches[index].duration_s > 0 < measured_s:
                launch = plan.launches[index]
                text = (
                    f"<b>{escape(launch_name(launch))}</b><br>step {step}<br>"
                    f"predicted {seconds_text(launch.duration_s)}<br>"
                    f"measured {seconds_text(measured_s)}"
                )
                bucket = launch.cascade.bucket
                points[bucket].append((1e3 * launch.duration_s, 1e3 * measured_s, text))
                num_points += 1
    if not points:
        return None
    spread = [value for rows in points.values() for row in rows for value in row[:2]]
    low, high = min(spread) / 1.25, max(spread) * 1.25
    data: list[Figure] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [low, high],
            "y": [low, high],
            "line": {"color": GREY, "width": 1.2, "dash": "dot"},
            "hoverinfo": "skip",
        }
    ]
    data += [_cloud(rows, paints.get(bucket)) for bucket, rows in sorted(points.items())]
    layout = axes_layout("predicted (ms)", "measured (ms)", has_legend=False)
    layout["hovermode"] = "closest"
    for axis in ("xaxis", "yaxis"):
        layout[axis] |= _decades(low, high)
    return {"data": data, "layout": layout}


def _decades(low: float, high: float) -> Figure:
    """A logarithmic axis whose few labels do not run into one another."""
    steps = (1, 2, 5) if high / low < 100 else (1,)
    ticks = [mantissa * 10.0**power for power in range(-4, 9) for mantissa in steps]
    shown = [tick for tick in ticks if low <= tick <= high]
    return {
        "type": "log",
        "tickmode": "array",
        "tickvals": shown,
        "ticktext": [f"{tick:g}" for tick in shown],
    }


def _cloud(rows: Sequence[tuple[float, float, str]], paint: Paint | None) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [rounded(row[0]) for row in rows],
        "y": [rounded(row[1]) for row in rows],
        "hovertext": [row[2] for row in rows],
        "hoverinfo": "text",
        "marker": {"color": paint.colour if paint else GREY, "size": 8, "opacity": 0.75},
    }


def _launch_durations(trace: Trace) -> dict[int, float]:
    """Seconds from a launch's first span to its last, over its ranks."""
    extents: dict[int, tuple[float, float]] = {}
    for span in trace.spans:
        if span.launch is not None:
            start_s, end_s = extents.get(span.launch, (span.start_s, span.end_s))
            extents[span.launch] = min(start_s, span.start_s), max(end_s, span.end_s)
    return {index: end_s - start_s for index, (start_s, end_s) in extents.items()}


def comparison_figure(strategies: Sequence[Strategy]) -> Figure | None:
    """Step time of each strategy, measured and modelled, the fastest first."""
    names = [escape(strategy.name) for strategy in strategies]
    data: list[Figure] = []
    for label, colour, values in (
        ("measured", BLUE, [strategy.step_s for strategy in strategies]),
        ("modelled", "rgba(148, 156, 170, 0.75)", [s.modelled_step_s for s in strategies]),
    ):
        if any(value is not None for value in values):
            data.append(
                {
                    "type": "bar",
                    "name": label,
                    "x": names,
                    "y": values,
                    "marker": {"color": colour},
                    "text": ["" if value is None else seconds_text(value) for value in values],
                    "textposition": "outside",
                    "cliponaxis": False,
                    "hovertemplate": "%{x}: %{text}",
                }
            )
    if not data:
        return None
    layout = axes_layout("", "step time (s)", has_legend=True)
    layout |= {"barmode": "group", "bargap": 0.35, "hovermode": "closest"}
    layout["xaxis"] |= {"type": "category", "showgrid": False}
    layout["yaxis"] |= {"rangemode": "tozero"}
    return {"data": data, "layout": layout}


def _measured_s(row: StepMetrics) -> float | None:
    return row.step_s


def _modelled_s(row: StepMetrics) -> float | None:
    return row.modelled_step_s


def _running_mean(points: Sequence[tuple[int, float]], window: int) -> list[tuple[int, float]]:
    return [
        (points[end - 1][0], mean(value for _, value in points[max(0, end - window) : end]))
        for end in range(1, len(points) + 1)
    ]
