"""A decoded frame that becomes pixels only if it is wanted."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedFrame:
    """One decoded frame.

    Attributes:
        time_s: When it begins, in seconds from the file's first frame.
        rgb: Upright pixels [height, width, 3] at the given (width, height).
    """

    time_s: float
    rgb: Callable[[int, int], Pixels]
