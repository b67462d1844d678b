"""Stills and animated pictures, read with Pillow: JPEG, PNG, WebP, AVIF, BMP, TIFF.

GIF is read as video, which learns its times without decoding each frame.
"""

import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from PIL import Image, ImageOps, ImageSequence

from arachne.core.errors import DataError
from arachne.data.limits import MAX_ANIMATION_PIXELS, MAX_PICTURE_FRAMES, check_frame_size
from arachne.data.media_file import MediaFile
from arachne.data.timed_frame import Planes, TimedFrame
from arachne.data.timeline import Timeline

_FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "BMP", "TIFF")
"""Pillow's; its JPEG reads MPO too, a camera's JPEG with a second picture behind it."""

_AVIF = (b"avif", b"avis", b"mif1", b"msf1")
_HEIC = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs")
"""Brands of ISO/IEC 23008-12; those of AVIF may name any still, and Pillow finds out which."""

_ANIMATED = ("PNG", "WEBP", "AVIF")
_SWAPPING = (5, 6, 7, 8)
"""EXIF orientations that turn a picture by a quarter."""

_EXIF_ORIENTATION = 0x0112
_SHORTEST_S = 0.02
_DEFAULT_S = 0.1
"""Browsers show frames that claim less than 20 ms for 100 ms."""


def is_picture(head: bytes) -> bool:
    """Whether a file's first 16 bytes are those of a picture: of one that this file reads, or of
    HEIC, which it refuses by name.
    """
    return (
        head.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"BM", b"II*\0", b"MM\0*"))
        or (head.startswith(b"RIFF") and head[8:12] == b"WEBP")
        or _is_heif(head, _AVIF + _HEIC)
    )


def _is_heif(head: bytes, brands: tuple[bytes, ...]) -> bool:
    return head[4:8] == b"ftyp" and head[8:12] in brands


def scan_picture(file: MediaFile) -> Timeline:
    """The timeline of a picture; a still is one frame.

    Raises:
        DataError: It cannot be decoded, or is over a limit.
    """
    with _opened(file) as image:
        width, height = image.size
        if image.getexif().get(_EXIF_ORIENTATION) in _SWAPPING:
            width, height = height, width
        starts_s, end_s = _times_s(image)
    count = len(starts_s)
    return Timeline(
        width=width,
        height=height,
        pts=np.arange(count, dtype=np.int64),
        key_pts=np.zeros(1, dtype=np.int64),
        times_s=np.array(starts_s),
        end_s=end_s,
    )


def picture_frames(file: MediaFile, timeline: Timeline) -> Iterator[TimedFrame]:
    """All frames of a picture, in order.

    Raises:
        DataError: It cannot be decoded.
    """
    with _opened(file) as image:
        for index, frame in enumerate(ImageSequence.Iterator(image)):
            if index >= timeline.num_frames:
                return
            upright = _as_rgb(ImageOps.exif_transpose(frame))

            def planes(width: int, height: int, upright: Image.Image = upright) -> Planes:
                resized = upright.resize((width, height), Image.Resampling.BICUBIC)
                red, green, blue = np.asarray(resized, dtype=np.uint8).transpose(2, 0, 1)
                return red, green, blue

            yield TimedFrame(
                time_s=float(timeline.times_s[index]),
                width=timeline.width,
                height=timeline.height,
                planes=planes,
            )


@contextmanager
def _opened(file: MediaFile) -> Generator[Any, None, None]:
    """An image whose size was checked before any of its pixels was decoded."""
    opened = file.open()  # not part of what follows: that it cannot be read is no damage
    try:
        with opened, warnings.catch_warnings():
            if _is_heif(opened.peek(12), _HEIC):
                raise DataError("it is a HEIC picture, which is not read; save it as JPEG or PNG")
            # Pillow warns below its own limit; ours, checked next, is lower still.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(opened, formats=_FORMATS) as image:
                check_frame_size(*image.size)
                if image.mode == "F" or (image.mode == "I" and image.format == "TIFF"):
                    raise DataError("its pixels are numbers of 32 bits; save it with 8 or 16 bits")
                yield image
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise DataError(f"the picture cannot be decoded: {error}") from error


def _times_s(image: Any) -> tuple[list[float], float]:
    """Start of each frame and the end; decodes every frame, since only that proves it whole."""
    count = getattr(image, "n_frames", 1) if image.format in _ANIMATED else 1
    if count > MAX_PICTURE_FRAMES:
        raise DataError(f"it has {count:,} frames; the limit is {MAX_PICTURE_FRAMES:,}")
    width, height = image.size
    if count > 1 and count * width * height > MAX_ANIMATION_PIXELS:
        raise DataError(
            f"it has {count:,} frames of {width}x{height}; the limit is {MAX_ANIMATION_PIXELS:,} "
            "pixels in all; store it as a video"
        )
    starts_s: list[float] = []
    end_s = 0.0
    for index in range(count):
        image.seek(index)
        image.load()
        shown_s = float(image.info.get("duration", 0.0)) / 1000.0
        starts_s.append(end_s)
        end_s += shown_s if shown_s >= _SHORTEST_S else _DEFAULT_S
    return starts_s, end_s


def _as_rgb(image: Image.Image) -> Image.Image:
    """8-bit RGB; what is transparent becomes white, 16-bit greys keep their range."""
    if image.mode.startswith("I"):
        grey = np.asarray(image).astype(np.float64) / 257.0
        return Image.fromarray(np.clip(np.rint(grey), 0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        layer = image.convert("RGBA")
        canvas = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        return Image.alpha_composite(canvas, layer).convert("RGB")
    return image.convert("RGB")
