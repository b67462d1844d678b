"""What the page's charts share: colours, lines, axes; plain dicts that plotly draws."""

from collections.abc import Sequence
from typing import Any

Figure = dict[str, Any]

BLUE = "#0072B2"
ORANGE = "#E69F00"
GREEN = "#009E73"
GREY = "#8a94a6"

FROM_LEAST_TO_MOST = ("#56B4E9", "#0072B2", "#D55E00", "#7A2E00")
"""Four steps from cool to warm that the colour-blind tell apart: three colours of Okabe and Ito
(2008), and a darker one."""

_MAX_POINTS = 2000
_HEIGHT_PX = 300


def line_trace(
    points: Sequence[tuple[int, float]],
    name: str,
    colour: str,
    *,
    width: float,
    has_markers: bool = False,
) -> Figure:
    """A line through at most 2,000 evenly chosen points, the last one always among them."""
    stride = -(-len(points) // _MAX_POINTS)
    chosen = [*points[::stride]]
    if chosen[-1] != points[-1]:
        chosen.append(points[-1])
    is_sparse = len(chosen) <= 24
    return {
        "type": "scatter",
        "mode": "lines+markers" if has_markers or is_sparse else "lines",
        "name": name,
        "x": [step for step, _ in chosen],
        "y": [rounded(value) for _, value in chosen],
        "line": {"color": colour, "width": width},
        "marker": {"size": 6},
        "hovertemplate": "%{y:.4~g}",
    }


def rounded(value: float) -> float:
    """Six significant digits: enough to draw, short to store."""
    return float(f"{value:.6g}")


def axes_layout(x_title: str, y_title: str, *, has_legend: bool) -> Figure:
    """Titled axes, and room for a legend above them."""
    return {
        "height": _HEIGHT_PX,
        "margin": {"l": 62, "r": 16, "t": 34 if has_legend else 14, "b": 50},
        "hovermode": "x unified",
        "showlegend": has_legend,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "xaxis": {"title": {"text": x_title}, "zeroline": False},
        "yaxis": {"title": {"text": y_title}, "zeroline": False, "automargin": True},
    }
