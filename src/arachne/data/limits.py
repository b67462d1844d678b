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

MAX_ANIMATION_PIXELS = 2**30
"""Pixels of all frames of an animated picture, such as 1,000 of 1024x1024: seconds of decoding."""

MAX_DECODE_BYTES = 2**32
"""Memory for decoding one clip, its own pixels apart: H.264 and HEVC keep up to 16 frames to refer
to, which at MAX_FRAME_PIXELS, 10 bits and 4:2:0 (3 bytes a pixel) are 3.2 GB."""

MAX_DECODE_S = 600.0
"""*Assumption*: a clip that is decoded for longer is not worth it. Counts the keyframe's distance
from the span, which in a file without index is the file's beginning."""


def check_frame_size(width: int, height: int) -> None:
    """Refuse a frame before it is decoded.

    Raises:
        DataError: A side is 0, or the frame is over a cap.
    """
    if min(width, height) < 1:
        # FFmpeg says 0x0 of a size that is over its own limit, which is set to this one.
        raise DataError(
            f"its header says {width}x{height} pixels: no size, or one over the limit of "
            f"{MAX_FRAME_PIXELS:,} pixels"
        )
    if max(width, height) > MAX_SIDE or width * height > MAX_FRAME_PIXELS:
        raise DataError(
            f"its frames are {width}x{height}; the limit is {MAX_SIDE} pixels a side "
            f"and {MAX_FRAME_PIXELS:,} in all"
        )
