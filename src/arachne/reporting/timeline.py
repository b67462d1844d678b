"""The timeline of one step: a row for each rank, what was measured above what was modelled.

A launch is one bar on each of its ranks, however many spans it has: bars stay few enough for
hundreds of ranks. Waiting inside a launch lies over its bar as a light veil, where it is long
enough to be seen; the hover text counts all of it.

Figures are plotly's JSON form (`data` and `layout`), made without importing plotly;
`plotly.graph_objects.Figure(figure)` checks and shows them.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from arachne.core.batch import Batch
from arachne.core.bucket import Bucket
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from arachne.core.trace import Span, SpanKind, Trace
from arachne.core.units import count_text, percent_text, seconds_text
from arachne.reporting.launch_text import launch_name, planned_launch, span_launch_name
from arachne.reporting.shape_colours import HATCH_GROUND, UNKNOWN_COLOUR, Paint, shape_paints

Figure = dict[str, Any]

KIND_COLOURS: Mapping[SpanKind, str] = {
    "wait": "rgba(148, 156, 170, 0.34)",
    "load": "rgba(148, 156, 170, 0.60)",
    "handoff": "#8a7aa8",
    "reduce": "#6f7d95",
    "optimizer": "#4a5670",
}
"""Stretches outside launches; waiting and loading are idle, so they recede."""

KIND_NAMES: Mapping[SpanKind, str] = {
    "wait": "waiting for other ranks",
    "load": "waiting for data",
    "handoff": "receiving encoder results",
    "reduce": "summing gradients",
    "optimizer": "optimizer",
}

ENCODER_OPACITY = 0.45
"""Of the bars of encoders, beside those of training."""

_VEIL = "rgba(236, 239, 244, 0.72)"
_EDGE = "rgba(255, 255, 255, 0.75)"
_VISIBLE_SHARE = 0.001
_MAX_LABELLED_RANKS = 32
_MAX_NAMED_CLIPS = 6
_MAX_VEILS = 4000
_GAP_PX = 46


@dataclass(slots=True)
class _Bars:
    """Columns of one plotly bar trace."""

    base: list[float] = field(default_factory=list[float])
    length: list[float] = field(default_factory=list[float])
    rank: list[int] = field(default_factory=list[int])
    hover: list[str] = field(default_factory=list[str])
    label: list[str] = field(default_factory=list[str])

    def add(self, span: tuple[float, float], rank: int, hover: str, label: str = "") -> None:
        self.base.append(_drawn(span[0]))
        self.length.append(_drawn(span[1] - span[0]))
        self.rank.append(rank)
        self.hover.append(hover)
        self.label.append(label)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Panel:
    """What all bars of one panel share."""

    trace: Trace
    plan: PlacedPlan | None
    texts: Mapping[int, str]
    axis: str


def timeline(
    traces: Sequence[Trace],
    plan: PlacedPlan | None,
    *,
    batch: Batch | None = None,
    paints: Mapping[Bucket, Paint] | None = None,
) -> Figure:
    """A figure of one step; each trace is a panel of its own on a shared axis in seconds.

    Args:
        traces: One or two traces of the same step, drawn from top to bottom.
        plan: The step's plan; without it launches have no shape and no predicted duration.
        batch: The step's clips; without it hover texts name slots.
        paints: Colours by shape; give those of the whole page so that a shape keeps its colour.
    """
    launches = () if plan is None else plan.launches
    if paints is None:
        paints = shape_paints(launch.cascade.bucket for launch in launches)
    texts = _launch_texts(traces, plan, batch)
    data: list[Figure] = []
    for index, trace in enumerate(traces):
        axis = "y" if index == 0 else f"y{index + 1}"
        panel = _Panel(trace=trace, plan=plan, texts=texts, axis=axis)
        data += _panel_bars(panel, paints)
    return {"data": data, "layout": _layout(traces)}


def drawn_kinds(traces: Iterable[Trace]) -> frozenset[SpanKind]:
    """Kinds of the stretches that timelines of these traces draw outside or over launches."""
    return frozenset(
        span.kind
        for trace in traces
        for span in trace.spans
        if span.launch is None or span.kind in ("wait", "load")
    )


def num_bars(trace: Trace) -> int:
    """About how many bars a trace draws; pages use it to stay small."""
    launches = {(span.rank, span.launch) for span in trace.spans if span.launch is not None}
    return len(launches) + sum(span.launch is None for span in trace.spans)


def _drawn(seconds: float) -> float:
    return round(seconds, 7)


def _panel_bars(panel: _Panel, paints: Mapping[Bucket, Paint]) -> list[Figure]:
    by_launch: dict[tuple[int, int], list[Span]] = defaultdict(list)
    by_kind: dict[SpanKind, _Bars] = defaultdict(_Bars)
    for span in panel.trace.spans:
        if span.launch is not None:
            by_launch[span.rank, span.launch].append(span)
        else:
            hover = f"<b>{_kind_name(span.kind)}</b><br>rank {span.rank}<br>"
            hover += seconds_text(span.duration_s)
            by_kind[span.kind].add((span.start_s, span.end_s), span.rank, hover)
    by_shape: dict[tuple[Bucket | None, bool], _Bars] = defaultdict(_Bars)
    veils: list[tuple[Span, str]] = []
    shortest_s = _VISIBLE_SHARE * panel.trace.iteration_s
    for (rank, index), spans in by_launch.items():
        launch = planned_launch(panel.plan, index)
        hover = panel.texts[index] + _rank_text(panel.trace, rank, spans)
        extent = min(s.start_s for s in spans), max(s.end_s for s in spans)
        shape = None if launch is None else launch.cascade.bucket
        is_encoder = launch is not None and launch.cascade.module != "dit"
        by_shape[shape, is_encoder].add(extent, rank, hover, _bar_label(panel, index, launch))
        idle = [s for s in spans if s.kind in ("wait", "load") and s.duration_s >= shortest_s]
        veils += [(span, hover) for span in idle]
    is_roomy = panel.trace.world_size <= _MAX_LABELLED_RANKS
    drawn = [
        _bar_trace(
            bars,
            panel.axis,
            _paint_marker(None if shape is None else paints.get(shape), is_encoder=is_encoder),
            is_roomy,
        )
        for (shape, is_encoder), bars in by_shape.items()
    ]
    drawn += [
        _bar_trace(bars, panel.axis, {"color": KIND_COLOURS.get(kind, UNKNOWN_COLOUR)}, is_roomy)
        for kind, bars in by_kind.items()
    ]
    veils.sort(key=lambda pair: -pair[0].duration_s)
    veil = _Bars()
    for span, hover in veils[:_MAX_VEILS]:
        veil.add((span.start_s, span.end_s), span.rank, hover)
    if veil.base:
        drawn.append(_bar_trace(veil, panel.axis, {"color": _VEIL}, is_roomy, has_edge=False))
    return drawn


def _kind_name(kind: SpanKind) -> str:
    return KIND_NAMES.get(kind, kind)


def _paint_marker(paint: Paint | None, *, is_encoder: bool) -> Figure:
    """Encoders have the colour of the shape that they encode, but pale."""
    if paint is None:
        return {"color": UNKNOWN_COLOUR}
    marker: Figure = {"color": paint.colour, "ink": paint.ink}
    if is_encoder:
        marker |= {"opacity": ENCODER_OPACITY, "ink": "#14181f"}
    if paint.hatch:
        marker["pattern"] = {
            "shape": paint.hatch,
            "size": 6,
            "solidity": 0.25,
            "bgcolor": HATCH_GROUND,
        }
    return marker


def _bar_trace(
    bars: _Bars, axis: str, marker: Figure, is_roomy: bool, *, has_edge: bool = True
) -> Figure:
    ink = marker.pop("ink", "#ffffff")
    trace: Figure = {
        "type": "bar",
        "orientation": "h",
        "base": bars.base,
        "x": bars.length,
        "y": bars.rank,
        "yaxis": axis,
        "width": 0.86 if is_roomy else 1,
        "marker": {**marker, "line": {"width": int(is_roomy and has_edge), "color": _EDGE}},
        "hovertext": bars.hover,
        "hoverinfo": "text",
        "showlegend": False,
    }
    if any(bars.label):
        trace |= {
            "text": bars.label,
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textangle": 0,
            "insidetextfont": {"color": ink},
        }
    return trace


def _bar_label(panel: _Panel, index: int, launch: PlacedLaunch | None) -> str:
    """Short enough for a bar; plotly hides it where it does not fit."""
    if panel.trace.world_size > _MAX_LABELLED_RANKS:
        return ""
    return f"launch {index}" if launch is None else launch_name(launch).removeprefix("dit ")


def _launch_texts(
    traces: Sequence[Trace], plan: PlacedPlan | None, batch: Batch | None
) -> dict[int, str]:
    """The part of a launch's hover text that all its ranks and both panels share."""
    lasted: dict[bool, dict[int, float]] = {}
    indices: set[int] = set()
    for trace in traces:
        extents: dict[int, tuple[float, float]] = {}
        for span in trace.spans:
            if span.launch is not None:
                start_s, end_s = extents.get(span.launch, (span.start_s, span.end_s))
                extents[span.launch] = min(start_s, span.start_s), max(end_s, span.end_s)
        lasted[trace.is_measured] = {i: end_s - start_s for i, (start_s, end_s) in extents.items()}
        indices |= extents.keys()
    texts: dict[int, str] = {}
    for index in indices:
        launch = planned_launch(plan, index)
        lines = [f"<b>{escape(span_launch_name(plan, index))}</b>"]
        if launch is not None:
            lines += _cascade_lines(launch, batch)
        measured_s = lasted.get(True, {}).get(index)
        if measured_s is not None:
            lines.append(f"measured {seconds_text(measured_s)}")
        if launch is not None:
            lines.append(f"predicted {seconds_text(launch.duration_s)}")
        texts[index] = "<br>".join(lines)
    return texts


def _cascade_lines(launch: PlacedLaunch, batch: Batch | None) -> list[str]:
    cascade = launch.cascade
    if cascade.steps_ahead:
        batch = None  # its clips are the next step's
    names = [_clip_name(slot, batch) for slot in cascade.slots[:_MAX_NAMED_CLIPS]]
    if cascade.num_clips > _MAX_NAMED_CLIPS:
        names.append(f"and {cascade.num_clips - _MAX_NAMED_CLIPS} more")
    tokens = cascade.num_tokens * cascade.num_clips
    ranks = f"ranks {launch.ranks[0]}–{launch.ranks[-1]}" if launch.degree > 1 else "one rank"
    return [
        *names,
        f"{count_text(cascade.num_clips, 'clip')}, {count_text(tokens, 'token')}",
        f"degree {launch.degree} ({ranks})",
    ]


def _clip_name(slot: int, batch: Batch | None) -> str:
    """Names come from the dataset and may hold markup."""
    if batch is None or not 0 <= slot < len(batch.clips):
        return f"clip in slot {slot}"
    name = batch.clips[slot].name
    return escape(name if len(name) <= 60 else f"…{name[-59:]}")


def _rank_text(trace: Trace, rank: int, spans: Iterable[Span]) -> str:
    """What one rank did within a launch."""
    seconds: dict[SpanKind, float] = defaultdict(float)
    for span in spans:
        seconds[span.kind] += span.duration_s
    if not trace.is_measured:
        return f"<br>rank {rank}, modelled"
    parts = [f"{kind} {seconds_text(total)}" for kind, total in seconds.items()]
    return f"<br>rank {rank}: {', '.join(parts)}"


def _layout(traces: Sequence[Trace]) -> Figure:
    num_ranks = max((trace.world_size for trace in traces), default=1)
    panel_px = max(64, min(26 * num_ranks, 420))
    plot_px = panel_px * len(traces) + _GAP_PX * (len(traces) - 1)
    layout: Figure = {
        "height": plot_px + 92,
        "margin": {"l": 66, "r": 18, "t": 34, "b": 58},
        "barmode": "overlay",
        "bargap": 0,
        "hovermode": "closest",
        "uniformtext": {"mode": "hide", "minsize": 9},
        "annotations": [],
    }
    bottom_axis = "y" if len(traces) < 2 else f"y{len(traces)}"
    layout["xaxis"] = {
        "title": {"text": "from the start of the step"},
        "tickformat": "~s",  # with the suffix: 5ms, 1.5s
        "ticksuffix": "s",
        "anchor": bottom_axis,
        "rangemode": "tozero",
        "zeroline": False,
    }
    for index, trace in enumerate(traces):
        top = 1 - index * (panel_px + _GAP_PX) / plot_px
        layout["yaxis" if index == 0 else f"yaxis{index + 1}"] = {
            "domain": [max(0.0, top - panel_px / plot_px), top],
            "range": [trace.world_size - 0.5, -0.5],
            "tickprefix": "rank ",
            "tickmode": "linear",
            "tick0": 0,
            "dtick": max(1, -(-trace.world_size // 16)),
            "showgrid": False,
            "zeroline": False,
            "fixedrange": trace.world_size <= _MAX_LABELLED_RANKS,
        }
        layout["annotations"].append(_panel_title(trace, top))
    return layout


def _panel_title(trace: Trace, top: float) -> Figure:
    kind = "measured" if trace.is_measured else "modelled"
    return {
        "text": f"<b>{kind}</b>  {seconds_text(trace.iteration_s)}, "
        f"idle ratio {percent_text(trace.idle_ratio, 1)}",
        "xref": "paper",
        "yref": "paper",
        "x": 0,
        "y": top,
        "xanchor": "left",
        "yanchor": "bottom",
        "yshift": 5,
        "showarrow": False,
    }
