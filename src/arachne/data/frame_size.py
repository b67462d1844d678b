"""The width and height that a clip trains in, and how its frames fill them.

The rule:
1. Frames are cropped (`crop`), or set in black (`letterbox`). Where aspect ratios are listed, the
   largest part of the frame that has the nearest one counts from here on; for letterbox the
   smallest frame of that ratio around it. Else the frame itself does.
2. Larger than resolution² pixels, it is scaled down to that area in its own aspect ratio; a smaller
   one keeps its size, or is scaled up if that is asked for. This is the ideal size.
3. Each side goes to a multiple of the model's, just below or just above its ideal. Of these (at
   most four) sizes, those count that do not exceed resolution² pixels nor, unless that is asked
   for, need the source to be scaled up. The one nearest to the ideal wins (sum of the sides' |log
   ratios|), for letterbox the one nearest to its aspect ratio; the larger of equals.
4. The frame is scaled until it just covers that size, and what stands out is cropped evenly; for
   letterbox until it just fits, and the rest is black, evenly on both sides. Would more than a
   quarter of the frame be cropped, or more than three quarters of the size be black, the clip is
   rejected.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import log, sqrt
from typing import Literal

from arachne.core.errors import ConfigError
from arachne.core.units import percent_text

_ASPECT = re.compile(r"([1-9][0-9]{0,4}):([1-9][0-9]{0,4})")

Fit = Literal["crop", "letterbox"]

MAX_CROPPED_SHARE = 0.25
MAX_BLACK_SHARE = 0.75
"""*Assumption*: of a 16:9 frame in 9:16, which somebody may want, 68 % are black."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSize:
    """A size in pixels.

    Attributes:
        cropped_share: Of the source frame's area, what is cropped; 0 with letterbox.
        black_share: Of the size's area, what is black; 0 with crop.
    """

    width: int
    height: int
    cropped_share: float
    black_share: float


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
    fit: Fit = "crop",
) -> FrameSize | NoFrameSize:
    """The size that a frame of width × height pixels trains in; the rule is this file's text."""
    budget = resolution * resolution
    ideal = ideal_size(*window_of_frame(width, height, aspects, fit), resolution, upscale=upscale)
    for name, side, multiple in zip(("width", "height"), ideal, side_multiple, strict=True):
        if side < multiple - 1e-6:
            return NoFrameSize(
                reason=f"{width}x{height} scaled to at most {resolution}x{resolution} pixels is "
                f"{ideal[0]:.1f}x{ideal[1]:.1f}; {name} {side:.1f} is below {multiple}, the least "
                "that the model takes"
            )
    choices = [
        _size(width, height, w, h, fit)
        for w, h in product(*map(_neighbours, ideal, side_multiple))
        if w * h <= budget and (upscale or _scale(width, height, w, h, fit) <= 1.0)
    ]
    best = min(
        choices,
        key=lambda c: (_distance(c, ideal, fit), -c.width * c.height, -c.width),
    )
    if best.cropped_share > MAX_CROPPED_SHARE or best.black_share > MAX_BLACK_SHARE:
        lost = (
            f"would crop {percent_text(best.cropped_share)} of it, more than "
            f"{percent_text(MAX_CROPPED_SHARE)}"
            if best.cropped_share
            else f"would be {percent_text(best.black_share)} black, more than "
            f"{percent_text(MAX_BLACK_SHARE)}"
        )
        return NoFrameSize(
            reason=f"{width}x{height} is {ideal[0]:.1f}x{ideal[1]:.1f} at this resolution; the "
            f"nearest size {best.width}x{best.height} {lost}; "
            + (
                "add a ratio nearer to its own to data.aspects"
                if aspects
                else "raise the resolution"
            )
        )
    return best


def scaled_size(width: int, height: int, size: tuple[int, int], fit: Fit) -> tuple[int, int]:
    """The (width, height) that a frame is scaled to, in its own aspect ratio: the smallest that
    covers `size`, or for letterbox the largest within it.
    """
    scale = _scale(width, height, *size, fit)
    scaled = max(1, round(width * scale)), max(1, round(height * scale))
    pick = max if fit == "crop" else min
    return pick(scaled[0], size[0]), pick(scaled[1], size[1])


def ideal_size(
    width: float, height: float, resolution: int, *, upscale: bool = False
) -> tuple[float, float]:
    """Step 1 of the rule: at most resolution² pixels, in the frame's own aspect ratio."""
    scale = sqrt(resolution * resolution / (width * height))
    scale = scale if upscale else min(1.0, scale)
    return width * scale, height * scale


def window_of_frame(
    width: int, height: int, aspects: Sequence[float], fit: Fit
) -> tuple[float, float]:
    """Step 1 of the rule: the part of a frame that is brought to a size, or what it is set in."""
    if not aspects:
        return width, height
    nearest = min(aspects, key=lambda aspect: (abs(log(aspect * height / width)), aspect))
    pick = min if fit == "crop" else max
    return pick(width, height * nearest), pick(height, width / nearest)


def reached_resolution(window: tuple[float, float], resolutions: Sequence[int]) -> int:
    """The largest resolution whose area a window has without scaling up; the least if it has none
    of theirs.
    """
    pixels = window[0] * window[1]
    return max((r for r in resolutions if r * r <= pixels + 1e-6), default=min(resolutions))


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


def _distance(size: FrameSize, ideal: tuple[float, float], fit: Fit) -> float:
    wider, taller = log(size.width / ideal[0]), log(size.height / ideal[1])
    return round(abs(wider) + abs(taller) if fit == "crop" else abs(wider - taller), 9)


def _scale(width: int, height: int, new_width: int, new_height: int, fit: Fit) -> float:
    """What a frame's sides are multiplied by to cover a size, or to fit into it."""
    sides = new_width / width, new_height / height
    return max(sides) if fit == "crop" else min(sides)


def _size(width: int, height: int, new_width: int, new_height: int, fit: Fit) -> FrameSize:
    scale = _scale(width, height, new_width, new_height, fit)
    source, size = width * height * scale * scale, new_width * new_height
    return FrameSize(
        width=new_width,
        height=new_height,
        cropped_share=max(0.0, 1.0 - size / source) if fit == "crop" else 0.0,
        black_share=0.0 if fit == "crop" else max(0.0, 1.0 - source / size),
    )
