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


def frame_numbers(pixels: np.ndarray) -> list[int]:
    """Which frames of a ramp these are, by their mean grey."""
    return [round((float(frame.mean()) - 20) / 2) for frame in pixels]
