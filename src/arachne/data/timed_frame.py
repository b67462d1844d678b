"""A decoded frame that becomes pixels only if it is wanted."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

Planes = tuple[Pixels, Pixels, Pixels]
"""Red, green and blue, each [height, width]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedFrame:
    """One decoded frame.

    Attributes:
        time_s: When it begins, in seconds from the file's first frame.
        width: Pixels, upright and with square pixels.
        height: Likewise.
        planes: Its upright colours at the given (width, height).
    """

    time_s: float
    width: int
    height: int
    planes: Callable[[int, int], Planes]


def empty_pixels(num_frames: int, height: int, width: int) -> Pixels:
    """Room for frames [F, H, W, 3] of which each colour lies in one piece; see `as_pixels`."""
    return as_pixels(np.empty((num_frames, 3, height, width), dtype=np.uint8))


def as_pixels(planes: Pixels) -> Pixels:
    """Planes [F, 3, H, W] as frames [F, H, W, 3], in the same memory.

    Decoding to planes takes half the time of decoding to packed RGB, and encoders want them.
    """
    return planes.transpose(0, 2, 3, 1)
