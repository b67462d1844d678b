"""Colours that stay with a shape through the whole page.

Palette: Okabe and Ito, *Color Universal Design* (2008), told apart with every common kind of colour
blindness; black is left out because pages have a dark form. Past seven shapes the colours repeat
with a hatch.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from arachne.core.bucket import Bucket

_PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
_DARK_INK_ON = frozenset({"#E69F00", "#56B4E9", "#F0E442", "#CC79A7"})
_HATCHES = ("", "/", ".", "x")

HATCH_GROUND = "#eef1f6"
"""Behind a hatch, so that dark ink can be read on it in light and dark pages."""

UNKNOWN_COLOUR = "#8a94a6"
"""For launches whose plan is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paint:
    """A fill, its hatch (plotly's pattern shape; empty for none), and the ink to write on it."""

    colour: str
    hatch: str
    ink: str


def shape_paints(buckets: Iterable[Bucket]) -> dict[Bucket, Paint]:
    """A paint for each shape, smallest shape first; the same shapes always get the same paints."""
    ordered = sorted(set(buckets), key=lambda bucket: (bucket.num_pixels, bucket))
    paints: dict[Bucket, Paint] = {}
    for index, bucket in enumerate(ordered):
        colour = _PALETTE[index % len(_PALETTE)]
        hatch = _HATCHES[index // len(_PALETTE) % len(_HATCHES)]
        ink = "#14181f" if hatch or colour in _DARK_INK_ON else "#ffffff"
        paints[bucket] = Paint(colour=colour, hatch=hatch, ink=ink)
    return paints
