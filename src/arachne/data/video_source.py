"""Frames of a video, decoded from the keyframe before the first one wanted."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.plane import VideoPlane
from av.video.reformatter import Interpolation, VideoReformatter
from av.video.stream import VideoStream

from arachne.core.errors import DataError
from arachne.data.color_matrix import color_matrix
from arachne.data.deinterlace import deinterlaced
from arachne.data.media_file import MediaFile
from arachne.data.timed_frame import Pixels, Planes, TimedFrame
from arachne.data.timeline import FrameTimes, Timeline
from arachne.data.video_file import opened_video
from arachne.data.video_scan import is_mirrored, rotation_of, times_and_packets, upright_size

_SEEKABLE = ("mov", "matroska")
"""Containers whose index leads to a keyframe exactly; others are decoded from the start."""

_FILTER = Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT
"""On three test clips it is within 53 to 57 dB of Lanczos in two thirds of the time. Without the
flags swscale takes shortcuts: chroma is repeated, and every colour is a level too dark."""

_FORMAT = "gbrp"
"""To planes swscale has vector code for full chroma, to packed RGB it has none: twice the time."""


@contextmanager
def whole_video(file: MediaFile) -> Generator[tuple[FrameTimes, Iterator[TimedFrame]], None, None]:
    """When the frames of a video are shown, and all of them in order of time, from one reading.

    Raises:
        DataError: It has no packet, is damaged, cut short or over a limit; for frames see
            `video_frames`.
    """
    with opened_video(file) as (container, stream):
        times, packets = times_and_packets(file, container, stream)
        if packets is not None:
            frames = chain.from_iterable(packet.decode() for packet in packets)
            yield times, _timed(deinterlaced(frames, stream), stream, times)
            return
    yield times, video_frames(file, times, 0)


def video_frames(file: MediaFile, timeline: FrameTimes, first: int) -> Iterator[TimedFrame]:
    """Frames in order of time, from the `first` of the timeline or an earlier one on.

    All are as large as the timeline says, or else as the first.

    Raises:
        DataError: A packet cannot be decoded, or the frames change their size.
    """
    key_pts = _key_before(timeline, first)
    if key_pts is not None:
        with opened_video(file) as (container, stream):
            if any(name in _SEEKABLE for name in container.format.name.split(",")):
                container.seek(key_pts, stream=stream)
                frames = deinterlaced(_decoded(container, stream), stream)
                frame = next(frames, None)
                if frame is not None and frame.pts is not None and frame.pts <= key_pts:
                    yield from _timed(chain([frame], frames), stream, timeline)
                    return
    with opened_video(file) as (container, stream):
        yield from _timed(deinterlaced(_decoded(container, stream), stream), stream, timeline)


def _key_before(timeline: FrameTimes, first: int) -> int | None:
    """The last keyframe at or before a frame; None if decoding starts at the beginning anyway."""
    if first == 0 or not len(timeline.pts):
        return None
    before = timeline.key_pts[timeline.key_pts <= timeline.pts[first]]
    return int(before[-1]) if len(before) and before[-1] > timeline.pts[0] else None


def _decoded(container: InputContainer, stream: VideoStream) -> Iterator[VideoFrame]:
    for packet in container.demux(stream):
        yield from packet.decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What is done to frames of one size and rotation.

    Attributes:
        size: (width, height), upright and with square pixels.
        turns: Quarter turns counter-clockwise.
        is_flipped: Whether top and bottom change places before that.
    """

    size: tuple[int, int]
    turns: int
    is_flipped: bool


def _timed(
    frames: Iterator[VideoFrame], stream: VideoStream, timeline: FrameTimes
) -> Iterator[TimedFrame]:
    # Of its own, since it keeps the tables of its last call's sizes.
    scaler = VideoReformatter()
    looks: dict[tuple[int, int, int, Fraction | None], _Look] = {}
    size = (timeline.width, timeline.height) if isinstance(timeline, Timeline) else None
    for order, frame in enumerate(frames):
        aspect = stream.codec_context.sample_aspect_ratio  # may change on the way
        key = frame.width, frame.height, frame.rotation, aspect
        look = looks.get(key)
        if look is None:
            look = looks[key] = _look(frame, stream)
        size = size or look.size
        if look.size != size:
            raise DataError(
                f"its frames change from {size[0]}x{size[1]} to {look.size[0]}x{look.size[1]}"
            )
        yield TimedFrame(
            time_s=timeline.time_of(frame.pts, order),
            width=size[0],
            height=size[1],
            planes=partial(_upright_planes, frame, look, scaler),
        )


def _look(frame: VideoFrame, stream: VideoStream) -> _Look:
    return _Look(
        size=upright_size(frame, stream), turns=rotation_of(frame), is_flipped=is_mirrored(frame)
    )


def _upright_planes(
    frame: VideoFrame, look: _Look, scaler: VideoReformatter, width: int, height: int
) -> Planes:
    if frame.is_corrupt:
        raise DataError("a frame is damaged")
    if look.turns % 2:
        width, height = height, width
    scaled = scaler.reformat(
        frame,
        width=width,
        height=height,
        format=_FORMAT,
        interpolation=_FILTER,
        src_colorspace=color_matrix(frame),
        threads=1,
    )
    green, blue, red = scaled.planes  # as `gbrp` has them
    return _pixels(red, look), _pixels(green, look), _pixels(blue, look)


def _pixels(plane: VideoPlane, look: _Look) -> Pixels:
    """One colour without the padding of its rows, flipped if asked and then turned; it keeps the
    frame alive.
    """
    memory: Any = plane  # its stub does not say that it is a buffer
    rows = np.frombuffer(memory, dtype=np.uint8).reshape(plane.height, plane.line_size)
    shown = rows[:, : plane.width]
    if not look.turns and not look.is_flipped:
        return shown
    return np.rot90(shown[:: -1 if look.is_flipped else 1], look.turns)
