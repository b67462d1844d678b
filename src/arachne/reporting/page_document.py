"""One HTML file that holds its script, data and pictures, and needs no network."""

import base64
import hashlib
import json
from collections.abc import Mapping
from html import escape

from arachne.reporting.chart_parts import Figure
from arachne.reporting.page_script import SCRIPT
from arachne.reporting.page_style import STYLE

_IDLE = (
    "Idle ratio = 1 − busy GPU-seconds ÷ "
    "(GPUs × step seconds); waiting for other ranks or for data is idle."
)


def document(
    *,
    title: str,
    lead: str,
    body: str,
    figures: Mapping[str, Figure],
    times: str,
    shows_idle: bool = True,
) -> str:
    """A whole page; its policy names the hashes of the two scripts that may run.

    Args:
        title: Plain text.
        lead: The sentence beneath it, plain text.
        body: HTML, in which `data-figure` names the figure that an element shows.
        figures: Figures by name.
        times: Which times the page shows; plain sentences for the foot.
        shows_idle: Whether the foot says what an idle ratio is.
    """
    library = _plotly_library() if figures else ""
    scripts = [library, SCRIPT] if figures else []
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; "
        f"script-src {' '.join(_hash_source(script) for script in scripts) or repr('none')}"
    )
    drawn = "".join(f"<script>{script}</script>" for script in scripts)
    store = f'<script type="application/json" id="figures">{_json_in_html(figures)}</script>'
    without_script = "The charts need JavaScript; the figures and tables do not."
    noscript = f"<noscript><p class='why'>{without_script}</p></noscript>" if figures else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} · Arachne report</title><style>{STYLE}</style></head><body>"
        f'<header class="top"><div class="brand">Arachne report</div><h1>{escape(title)}</h1>'
        f'<p class="lead">{escape(lead)}</p></header>'
        f"<main>{noscript}{body}</main>"
        f"<footer>{escape(times)}{' ' + _IDLE if shows_idle else ''}</footer>"
        f"{store if figures else ''}{drawn}</body></html>\n"
    )


def _plotly_library() -> str:
    # Loaded here because plotly is slow to load; it has no type stubs.
    from plotly.offline import get_plotlyjs  # pyright: ignore[reportMissingTypeStubs]

    return get_plotlyjs()


def _hash_source(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _json_in_html(value: object) -> str:
    """JSON that cannot end the script element that holds it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
