# pyright: basic
"""Frames to files that people open: an MP4 that every player shows, and a contact sheet."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image, ImageDraw

from arachne.core.errors import DataError
from arachne.core.new_file import written_aside

_CODEC = "libx264"
_QUALITY = {"crf": "18", "preset": "fast"}
"""Constant rate factor 18 is visually near lossless (FFmpeg's H.264 guide)."""
_LABEL_HEIGHT = 18
_GAP = 2


def write_mp4(path: Path, frames: np.ndarray, fps: float) -> None:
    """Write frames uint8 [F, H, W, 3] as H.264 in yuv420p.

    Odd sides get their last row or column twice, because yuv420p halves both sides. The file
    appears under its name only when it is complete.

    Raises:
        DataError: The frames have another form, or PyAV was built without an H.264 encoder.
    """
    _check_frames(frames)
    if _CODEC not in av.codecs_available:
        raise DataError(f"PyAV has no encoder {_CODEC!r}; install the `av` wheel from PyPI")
    _, height, width, _ = frames.shape
    padded = np.pad(frames, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        written_aside(path) as partial,
        av.open(str(partial), mode="w", format="mp4") as container,
    ):
        rate = Fraction(fps).limit_denominator(1001)
        stream = container.add_stream(_CODEC, rate=rate, options=_QUALITY)
        stream.width, stream.height, stream.pix_fmt = padded.shape[2], padded.shape[1], "yuv420p"
        for frame in padded:
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())


def read_mp4(path: Path) -> np.ndarray:
    """All frames of a video that `write_mp4` wrote, uint8 [F, H, W, 3]."""
    with av.open(str(path)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return np.stack(frames)


def contact_sheet(
    path: Path,
    rows: Sequence[tuple[str, np.ndarray]],
    columns: int,
    *,
    max_side: int | None = None,
) -> None:
    """Write a PNG with one labelled row a clip, and `columns` of its frames, evenly spaced.

    A clip with fewer frames fills fewer columns; frames with a side above `max_side` are scaled
    down to it.

    Raises:
        DataError: There are no rows, or one row's frames are not uint8 [F, H, W, 3].
    """
    assert columns >= 1, columns
    if not rows:
        raise DataError("a contact sheet needs at least one clip; got none")
    strips = [_strip(label, frames, columns, max_side) for label, frames in rows]
    width = max(strip.width for strip in strips)
    height = sum(strip.height for strip in strips) + _GAP * (len(strips) - 1)
    sheet = Image.new("RGB", (width, height), "white")
    top = 0
    for strip in strips:
        sheet.paste(strip, (0, top))
        top += strip.height + _GAP
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_aside(path) as partial:
        sheet.save(partial, format="PNG")


def _strip(label: str, frames: np.ndarray, columns: int, max_side: int | None) -> Image.Image:
    """One clip's label above its frames, left to right."""
    _check_frames(frames)
    count = min(columns, len(frames))
    indices = np.linspace(0, len(frames) - 1, count).round().astype(int).tolist()
    pictures = [Image.fromarray(np.ascontiguousarray(frames[index])) for index in indices]
    if max_side is not None:
        for picture in pictures:
            picture.thumbnail((max_side, max_side))
    width, height = pictures[0].size
    strip = Image.new("RGB", (count * (width + _GAP) - _GAP, height + _LABEL_HEIGHT), "white")
    ImageDraw.Draw(strip).text((2, 3), label, fill="black")
    for column, picture in enumerate(pictures):
        strip.paste(picture, (column * (width + _GAP), _LABEL_HEIGHT))
    return strip


def _check_frames(frames: np.ndarray) -> None:
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3 or not frames.size:
        raise DataError(
            f"frames are {frames.dtype} of shape {frames.shape}; a video needs uint8 "
            "[frames, height, width, 3]"
        )
