"""Charts of what a run's operator watches: losses broken down, utilisation, throughput."""

from collections.abc import Mapping, Sequence

from arachne.core.bucket import Bucket
from arachne.reporting.chart_parts import (
    BLUE,
    FROM_LEAST_TO_MOST,
    GREY,
    ORANGE,
    Figure,
    axes_layout,
    line_trace,
)
from arachne.reporting.run_files import Metrics, StepMetrics
from arachne.reporting.shape_colours import Paint

_MAX_BUCKETS = 8
"""Lines of one chart; the largest shapes come first."""


def noise_level_figure(rows: Sequence[StepMetrics]) -> Figure | None:
    """Loss at each noise level, of training or of held-out clips."""
    names = sorted({name for row in rows for name in row.sigma_losses or {}}, key=_number)
    data: list[Figure] = []
    for index, name in enumerate(names):
        points = [
            (row.step, row.sigma_losses[name])
            for row in rows
            if row.sigma_losses is not None and name in row.sigma_losses
        ]
        label = name
        if index == 0:
            label += " (least noise)"
        elif index == len(names) - 1:
            label += " (most noise)"
        shade = FROM_LEAST_TO_MOST[index * (len(FROM_LEAST_TO_MOST) - 1) // max(1, len(names) - 1)]
        data.append(line_trace(points, label, shade, width=2.0))
    return _drawn(data, "loss")


def bucket_loss_figure(
    rows: Sequence[StepMetrics], paints: Mapping[Bucket, Paint]
) -> Figure | None:
    """Loss of each shape, of training or of held-out clips; at most eight, the largest.

    A shape that is hatched elsewhere has a dotted line here.
    """
    paint_of = {str(bucket): paint for bucket, paint in paints.items()}
    names = {name for row in rows for name in row.bucket_losses or {}}
    ordered = sorted(names, key=lambda name: (-Bucket.parse(name).num_pixels, name))
    data: list[Figure] = []
    for name in ordered[:_MAX_BUCKETS]:
        points = [
            (row.step, row.bucket_losses[name])
            for row in rows
            if row.bucket_losses is not None and name in row.bucket_losses
        ]
        paint = paint_of.get(name)
        line = line_trace(points, name, paint.colour if paint else GREY, width=2.0)
        line["line"] |= {"dash": "dot" if paint and paint.hatch else "solid"}
        data.append(line)
    return _drawn(data, "loss")


def utilisation_figure(metrics: Metrics) -> Figure | None:
    """Model FLOPs utilisation of each step, in per cent."""
    points = [(row.step, 100 * row.mfu) for row in metrics.train if row.mfu is not None]
    if len(points) < 2:
        return None
    layout = axes_layout("step", "MFU (%)", has_legend=False)
    layout["yaxis"] |= {"rangemode": "tozero"}
    return {"data": [line_trace(points, "MFU", BLUE, width=2.0)], "layout": layout}


def unevenness_figure(metrics: Metrics) -> Figure | None:
    """Per step: how uneven the ranks' FLOP rates were, and the share of time waiting for clips."""
    data: list[Figure] = []
    for name, colour, pick in (
        ("variation of the ranks' FLOP rates", BLUE, _variation),
        ("share of time waiting for clips", ORANGE, _load_share),
    ):
        points = [(row.step, 100 * v) for row in metrics.train if (v := pick(row)) is not None]
        if len(points) >= 2:
            data.append(line_trace(points, name, colour, width=2.0))
    figure = _drawn(data, "%")
    if figure is not None:
        figure["layout"]["yaxis"] |= {"rangemode": "tozero"}
    return figure


def _variation(row: StepMetrics) -> float | None:
    return row.flop_rate_cv


def _load_share(row: StepMetrics) -> float | None:
    return row.load_share


def _number(name: str) -> tuple[int, str]:
    """`q10` comes after `q9`."""
    return len(name), name


def _drawn(data: list[Figure], y_title: str) -> Figure | None:
    """Lines with a legend; None if no line has two points."""
    if not any(len(line["x"]) >= 2 for line in data):
        return None
    return {"data": data, "layout": axes_layout("step", y_title, has_legend=True)}
