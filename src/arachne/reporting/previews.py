"""Small moving pictures of sample videos, for pages that show no video."""

from dataclasses import dataclass
from io import BytesIO

import numpy as np
from PIL import Image

_MAX_FRAMES = 48
_MAX_SIDE = 320
"""A preview stays far below a megabyte; the video itself lies in the run's folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """An animated GIF."""

    gif: bytes
    width: int
    height: int


def preview_of(frames: np.ndarray, fps: float) -> Preview:
    """A video uint8 [F, H, W, 3] with at most 48 frames and 320 pixels a side, at its own speed."""
    stride = -(-len(frames) // _MAX_FRAMES)
    pictures = [Image.fromarray(np.ascontiguousarray(frame)) for frame in frames[::stride]]
    for picture in pictures:
        picture.thumbnail((_MAX_SIDE, _MAX_SIDE))
    file = BytesIO()
    pictures[0].save(
        file,
        format="GIF",
        save_all=True,
        append_images=pictures[1:],
        duration=max(20, round(1000 * stride / fps)),
        loop=0,
    )
    return Preview(gif=file.getvalue(), width=pictures[0].width, height=pictures[0].height)
