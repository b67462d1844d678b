"""The width and height that a clip trains in.

The rule:
1. A frame larger than resolution² pixels is scaled down to that area in its own aspect ratio; a
   smaller one keeps its size, or is scaled up if that is asked for. This is the ideal size. Where
   aspect ratios are listed, it is that of the largest part of the frame that has the nearest one.
2. Each side goes to a multiple of the model's, just below or just above its ideal. Of these (at
   most four) sizes, those count that neither exceed resolution² pixels nor, without scaling up, the
   source's own sides; the one nearest to the ideal wins (sum of the sides' |log ratios|), the
   larger of equals.
3. The frame is scaled until it just covers that size, and what stands out is cropped evenly. Would
   that be more than a quarter of the frame, the clip is rejected.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import log, sqrt

from arachne.core.errors import ConfigError

_ASPECT = re.compile(r"([1-9]\d{0,4}):([1-9]\d{0,4})")

MAX_CROPPED_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSize:
    """A size in pixels, and the share of the source frame's area that is cropped for it."""

    width: int
    height: int
    cropped_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NoFrameSize:
    """Why a frame fits no size, with the arithmetic."""

    reason: str


def frame_size(
    width: int,
    height: int,
    resolution: int,
    side_multiple: tuple[int, int],
    *,
    aspects: Sequence[float] = (),
    upscale: bool = False,
) -> FrameSize | NoFrameSize:
    """The size that a frame of width × height pixels trains in; the rule is this file's text."""
    budget = resolution * resolution
    part = part_of_frame(width, height, aspects)
    ideal = ideal_size(*part, resolution, upscale=upscale)
    for name, side, multiple in zip(("width", "height"), ideal, side_multiple, strict=True):
        if side < multiple - 1e-6:
            return NoFrameSize(
                reason=f"{width}x{height} scaled to at most {resolution}x{resolution} pixels is "
                f"{ideal[0]:.1f}x{ideal[1]:.1f}; {name} {side:.1f} is below {multiple}, the least "
                "that the model takes"
            )
    choices = [
        FrameSize(width=w, height=h, cropped_share=_cropped_share(width, height, w, h))
        for w, h in product(*map(_neighbours, ideal, side_multiple))
        if w * h <= budget and (upscale or (w <= width and h <= height))
    ]
    best = min(
        choices,
        key=lambda c: (_distance(c, ideal), -c.width * c.height, -c.width),
    )
    if best.cropped_share > MAX_CROPPED_SHARE:
        return NoFrameSize(
            reason=f"{width}x{height} is {ideal[0]:.1f}x{ideal[1]:.1f} at this resolution; the "
            f"nearest size {best.width}x{best.height} would crop {best.cropped_share:.0%} of it, "
            f"more than {MAX_CROPPED_SHARE:.0%}; "
            + (
                "add a ratio nearer to its own to data.aspects"
                if aspects
                else "raise the resolution"
            )
        )
    return best


def ideal_size(
    width: float, height: float, resolution: int, *, upscale: bool = False
) -> tuple[float, float]:
    """Step 1 of the rule: at most resolution² pixels, in the frame's own aspect ratio."""
    scale = sqrt(resolution * resolution / (width * height))
    scale = scale if upscale else min(1.0, scale)
    return width * scale, height * scale


def part_of_frame(width: int, height: int, aspects: Sequence[float]) -> tuple[float, float]:
    """The largest part of a frame in the nearest of some aspect ratios; all of it without any."""
    if not aspects:
        return width, height
    nearest = min(aspects, key=lambda aspect: (abs(log(aspect * height / width)), aspect))
    return min(width, height * nearest), min(height, width / nearest)


def parsed_aspect(text: str) -> float:
    """Width over height, from `16:9`.

    Raises:
        ConfigError: The text has another form.
    """
    match = _ASPECT.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f'data.aspects holds {text!r}; write width:height, such as "16:9" or "1:1"'
        )
    return int(match[1]) / int(match[2])


def _neighbours(side: float, multiple: int) -> tuple[int, int]:
    below = int((side + 1e-6) // multiple) * multiple
    return below, below + multiple


def _distance(size: FrameSize, ideal: tuple[float, float]) -> float:
    ratios = abs(log(size.width / ideal[0])) + abs(log(size.height / ideal[1]))
    return round(ratios, 9)


def _cropped_share(width: int, height: int, bucket_width: int, bucket_height: int) -> float:
    scale = max(bucket_width / width, bucket_height / height)
    return 1.0 - bucket_width * bucket_height / (width * height * scale * scale)
