"""A clip's pixels, brought to its bucket: retimed by time stamps, scaled, cropped or framed."""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from arachne.core.bucket import Bucket
from arachne.core.clip import TimeSpan
from arachne.core.errors import DataError
from arachne.data.frame_size import Fit, scaled_size
from arachne.data.media_file import MediaFile, as_media_file
from arachne.data.picture_source import picture_frames
from arachne.data.probe import is_picture_file, timeline_of
from arachne.data.remote_path import DatasetPath
from arachne.data.timed_frame import Pixels, TimedFrame, empty_pixels
from arachne.data.timeline import Cut, FrameTimes, cut, retimed_count
from arachne.data.video_source import video_frames, whole_video

DECODE_VERSION = 4
"""Goes into every cache key: raise it when the same clip would give other pixels."""

TellCount = Callable[[int], None]
"""Told how many frames a clip's part of its file has, once decoding has counted them all."""

_LOST_SHARE = 0.1
"""Hidden reference frames (VP8) are packets that show nothing: so many frames may be missing."""


def decode_clip(
    file: DatasetPath | MediaFile,
    span: TimeSpan | None,
    bucket: Bucket,
    fps: float,
    *,
    fit: Fit = "crop",
    into: Pixels | None = None,
    tell_count: TellCount | None = None,
    is_counted: bool = False,
) -> Pixels:
    """The clip's frames [F, H, W, 3], where frame k is the source frame nearest to k / fps.

    Frames are scaled until they just cover the bucket, in their own aspect ratio, and what stands
    out on both sides is cropped; to `letterbox` them, until they just fit into it, and both sides
    are black. Decoding begins at the keyframe before the span and ends
    with the last frame that is needed, or with `is_counted` with the span. They are written to
    `into` where it is given. `tell_count` is called if decoding came to the span's end.

    Raises:
        DataError: The file cannot be decoded, or decoding gives fewer frames than the bucket needs.
    """
    shape = (bucket.frames, bucket.height, bucket.width, 3)
    pixels = empty_pixels(bucket.frames, bucket.height, bucket.width) if into is None else into
    assert pixels.shape == shape, pixels.shape
    seen = _Seen()
    with _opened(as_media_file(file), span) as (source, timeline, part):
        frames = _within(source, part, timeline.slack_s)
        picked = _pick(frames, timeline, part, bucket, fps, seen, is_counted)
        _show(picked, pixels, fit)
    if seen.is_all and tell_count is not None:
        tell_count(seen.count)
    return pixels


@contextmanager
def _opened(
    media: MediaFile, span: TimeSpan | None
) -> Generator[tuple[Iterator[TimedFrame], FrameTimes, Cut], None, None]:
    """The frames of a file from a span's first or an earlier one on, their times, and the part."""
    if is_picture_file(media):
        stills = timeline_of(media)
        yield picture_frames(media, stills), stills, cut(stills, span)
    elif span is None:
        # The first frame of a whole file says how large all are; it need not be decoded before.
        with whole_video(media) as (times, frames):
            yield frames, times, cut(times, None)
    else:
        timeline = timeline_of(media)
        part = cut(timeline, span)
        yield video_frames(media, timeline, part.first), timeline, part


def _show(picked: Iterator[tuple[int, bool, TimedFrame]], pixels: Pixels, fit: Fit) -> None:
    """Write frames, all of one size, into pixels [F, H, W, 3]: scaled, then cropped or set in
    black.
    """
    place: _Place | None = None
    for index, is_repeat, frame in picked:
        if is_repeat:
            pixels[index] = pixels[index - 1]
            continue
        if place is None:
            place = _place_of(frame, pixels, fit)
            if place.has_bars:
                pixels[:] = 0
        shown = pixels[index][place.shown]
        for color, plane in enumerate(frame.planes(*place.size)):
            shown[:, :, color] = plane[place.kept]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """How frames of one size come into a bucket.

    Attributes:
        size: (width, height) that they are scaled to.
        kept: The rows and columns of a scaled one that are not cropped.
        shown: The rows and columns of the bucket that those go to.
        has_bars: Whether that leaves any of the bucket black.
    """

    size: tuple[int, int]
    kept: tuple[slice, slice]
    shown: tuple[slice, slice]
    has_bars: bool


def _place_of(frame: TimedFrame, pixels: Pixels, fit: Fit) -> _Place:
    _, bucket_height, bucket_width, _ = pixels.shape
    width, height = scaled_size(frame.width, frame.height, (bucket_width, bucket_height), fit)
    rows, shown_rows = _overlap(height, bucket_height)
    columns, shown_columns = _overlap(width, bucket_width)
    return _Place(
        size=(width, height),
        kept=(rows, columns),
        shown=(shown_rows, shown_columns),
        has_bars=width < bucket_width or height < bucket_height,
    )


def _overlap(scaled: int, side: int) -> tuple[slice, slice]:
    """Which of `scaled` pixels lie in a `side` that has the same middle, and where in it."""
    cropped, black = max(0, scaled - side) // 2, max(0, side - scaled) // 2
    count = min(scaled, side)
    return slice(cropped, cropped + count), slice(black, black + count)


def _within(source: Iterator[TimedFrame], part: Cut, slack_s: float) -> Iterator[TimedFrame]:
    for frame in source:
        if frame.time_s >= part.end_s - slack_s:
            return
        if frame.time_s >= part.start_s - slack_s:
            yield frame


@dataclass(slots=True, kw_only=True)
class _Seen:
    """The frames that decoding has given so far; whether there are no more."""

    count: int = 0
    last: TimedFrame | None = None
    is_all: bool = False


def _pick(
    frames: Iterator[TimedFrame],
    timeline: FrameTimes,
    part: Cut,
    bucket: Bucket,
    fps: float,
    seen: _Seen,
    is_counted: bool,
) -> Iterator[tuple[int, bool, TimedFrame]]:
    """(index in the clip, whether it repeats the one before, frame) for each frame of the clip.

    A frame is final once a later one is known, which is farther from the wanted time.
    """
    index, previous = 0, None
    for frame in frames:
        seen.count += 1
        while index < bucket.frames and seen.last is not None:
            wanted_s = part.start_s + index / fps
            if wanted_s - seen.last.time_s > frame.time_s - wanted_s:
                break
            yield index, seen.last is previous, seen.last
            previous = seen.last
            index += 1
        seen.last = frame
        if index == bucket.frames and not is_counted:
            break
    else:
        seen.is_all = True
    _refuse_lost_frames(seen, timeline, part)
    assert seen.last is not None
    while index < bucket.frames:
        if index >= _num_found(seen.last, timeline, part, fps):
            raise _too_few(seen, timeline, part, bucket, fps)
        yield index, seen.last is previous, seen.last
        previous = seen.last
        index += 1


def _num_found(last: TimedFrame, timeline: FrameTimes, part: Cut, fps: float) -> int:
    """How many frames at `fps` there are until the last decoded frame's display ends."""
    is_last = last.time_s >= float(timeline.times_s[part.stop - 1]) - timeline.slack_s
    end_s = part.end_s if is_last else last.time_s + timeline.interval_s
    return retimed_count(end_s - part.start_s, fps)


def _refuse_lost_frames(seen: _Seen, timeline: FrameTimes, part: Cut) -> None:
    if seen.last is None:
        raise DataError(f"no frame was decoded; the file lists {part.stop - part.first}")
    times_s, slack_s = timeline.times_s, timeline.slack_s
    if seen.is_all:
        reached = int(np.searchsorted(times_s, seen.last.time_s + slack_s))
    else:  # of frames that begin at once it may have stopped after the first
        reached = int(np.searchsorted(times_s, seen.last.time_s - slack_s)) + 1
    listed = min(reached, part.stop) - part.first
    if listed - seen.count > max(1.0, _LOST_SHARE * listed):
        raise DataError(f"{seen.count} frames were decoded where the file lists {listed}")


def _too_few(seen: _Seen, timeline: FrameTimes, part: Cut, bucket: Bucket, fps: float) -> DataError:
    assert seen.last is not None
    found = _num_found(seen.last, timeline, part, fps)
    return DataError(
        f"{seen.count} frames were decoded, which give {found} "
        f"at {fps:g} fps; bucket {bucket} needs {bucket.frames}"
    )
