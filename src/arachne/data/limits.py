"""Caps on what is decoded: a tiny file can claim a frame of gigabytes or a billion frames."""

from arachne.core.errors import DataError

MAX_SIDE = 16384
"""Longest side of a frame in pixels; 16K video has 15360."""

MAX_FRAME_PIXELS = 2**26
"""Pixels of one frame; 67 million are 200 MB as RGB."""

MAX_FRAMES = 2**20
"""Frames of one file: 4.8 hours at 60 fps."""

MAX_PICTURE_FRAMES = 4096
"""Frames of an animated picture, each of which has to be decoded to learn its duration."""


def check_frame_size(width: int, height: int) -> None:
    """Refuse a frame before it is decoded.

    Raises:
        DataError: A side is 0, or the frame is over a cap.
    """
    if min(width, height) < 1:
        raise DataError(f"its header says {width}x{height} pixels")
    if max(width, height) > MAX_SIDE or width * height > MAX_FRAME_PIXELS:
        raise DataError(
            f"its frames are {width}x{height}; the limit is {MAX_SIDE} pixels a side "
            f"and {MAX_FRAME_PIXELS:,} in all"
        )
