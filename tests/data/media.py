"""Media files for tests, made on the spot."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np


@dataclass(frozen=True, kw_only=True)
class Look:
    """How a test video is stored."""

    width: int = 64
    height: int = 48
    fps: Fraction = Fraction(16)
    codec: str = "libx264"
    pix_fmt: str = "yuv420p"
    rotation: int | None = None
    pixel_aspect: Fraction | None = None
    options: tuple[tuple[str, str], ...] = ()
    codec_options: tuple[tuple[str, str], ...] = ()
    gop: int = 8


def grey_frames(values: Sequence[int], look: Look) -> list[np.ndarray]:
    return [np.full((look.height, look.width, 3), value, np.uint8) for value in values]


def write_video(
    path: Path,
    frames: Sequence[np.ndarray],
    look: Look | None = None,
    times_ms: Sequence[int] | None = None,
) -> Path:
    """`times_ms` gives each frame its own time stamp."""
    look = look or Look()
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", options=dict(look.options)) as container:
        stream: Any = container.add_stream(
            look.codec, rate=look.fps, options=dict(look.codec_options)
        )
        stream.width, stream.height, stream.pix_fmt = look.width, look.height, look.pix_fmt
        stream.gop_size = look.gop
        stream.bit_rate = 8_000_000
        if look.rotation is not None:
            stream.set_display_rotation(look.rotation)
        if look.pixel_aspect is not None:
            stream.codec_context.sample_aspect_ratio = look.pixel_aspect
        if times_ms is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for index, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            if times_ms is not None:
                frame.pts, frame.time_base = times_ms[index], Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def ramp(count: int) -> list[int]:
    """Grey values that name their frame: 2 per frame, from 20."""
    return [20 + 2 * index for index in range(count)]


def write_ramp(path: Path, count: int, look: Look | None = None) -> Path:
    look = look or Look()
    return write_video(path, grey_frames(ramp(count), look), look)


def write_damaged_packets(path: Path) -> Path:
    """A short video whose container is whole: only decoding finds out that it is damaged."""
    noise = np.random.default_rng(1).integers(0, 255, (9, 48, 64, 3), np.uint8)
    write_video(path, list(noise), Look(options=(("movflags", "faststart"),)))
    content = bytearray(path.read_bytes())
    start = len(content) // 4
    content[start : start + len(content) // 2] = bytes(len(content) // 2)
    path.write_bytes(content)
    return path


def frame_numbers(pixels: np.ndarray) -> list[int]:
    """Which frames of a ramp these are, by their mean grey."""
    return [round((float(frame.mean()) - 20) / 2) for frame in pixels]


_RED_AND_BLUE_SHARES = {1: (0.2126, 0.0722), 5: (0.299, 0.114), 9: (0.2627, 0.0593)}
"""Of luma in ITU-R BT.709, BT.601 and BT.2020, by the code of ITU-T H.273 for their matrix."""


def stored_color(
    rgb: tuple[int, int, int], matrix: int, is_full_range: bool
) -> tuple[float, float, float]:
    """Y, Cb and Cr on the 8-bit scale."""
    red, green, blue = (value / 255 for value in rgb)
    red_share, blue_share = _RED_AND_BLUE_SHARES[matrix]
    luma = red_share * red + (1 - red_share - blue_share) * green + blue_share * blue
    cb, cr = (blue - luma) / (2 - 2 * blue_share), (red - luma) / (2 - 2 * red_share)
    if is_full_range:
        return 255 * luma, 128 + 255 * cb, 128 + 255 * cr
    return 16 + 219 * luma, 128 + 224 * cb, 128 + 224 * cr


def write_flat_color(
    path: Path,
    look: Look,
    values: tuple[float, float, float],
    matrix: int | None,
    is_full_range: bool,
) -> None:
    """Two frames of one stored (Y, Cb, Cr), losslessly; tagged with the matrix if one is given."""
    is_deep = look.pix_fmt.endswith("10le")
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=look.fps, options={"qp": "0"})
        stream.width, stream.height, stream.pix_fmt = look.width, look.height, look.pix_fmt
        if matrix is not None:
            stream.codec_context.colorspace = matrix
        stream.codec_context.color_range = 2 if is_full_range else 1
        for _ in range(2):
            frame = av.VideoFrame(look.width, look.height, look.pix_fmt)
            for plane, value in zip(frame.planes, values, strict=True):
                level = round(4 * value) if is_deep else round(value)
                size = plane.buffer_size // (2 if is_deep else 1)
                plane.update(np.full(size, level, np.uint16 if is_deep else np.uint8))
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
