"""A file's timeline: when each frame is shown. Spans and retiming are cut from it.

A clip is the set of frames that begin within its span; it lasts until the next frame begins, so
that 63 frames of a 25 fps video are 63/25 s wherever the span's ends fall between frames.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor

import numpy as np
from numpy.typing import NDArray

from arachne.core.clip import MediaFacts, TimeSpan
from arachne.core.errors import DataError

_COUNT_SLACK = 0.01
"""Frames; covers the rounding of time stamps."""

SLACK_S = 1e-3
"""Matroska rounds times to milliseconds, so a frame this much early still begins in a span."""

_GAP_S = 10.0
_GAP_INTERVALS = 50.0
"""A step that is longer than both is a jump of the clock (a joined recording), not a held frame."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FrameTimes:
    """When each frame of a file is shown, as its packets say without being decoded.

    Attributes:
        pts: The container's time stamps [N], ascending; empty where it has none, or its clock
            begins anew on the way, so that frames are known only by their order.
        key_pts: Those of `pts` from which decoding can start.
        times_s: Seconds from the first frame [N], ascending.
        end_s: When the last frame's display ends.
    """

    pts: NDArray[np.int64]
    key_pts: NDArray[np.int64]
    times_s: NDArray[np.float64]
    end_s: float

    @property
    def num_frames(self) -> int:
        """Frames of the whole file."""
        return len(self.times_s)

    @property
    def interval_s(self) -> float:
        """The usual time between two frames."""
        if self.num_frames < 2:
            return max(self.end_s, SLACK_S)
        steps_s = np.diff(self.times_s)
        middles = (len(steps_s) - 1) // 2, len(steps_s) // 2
        around = np.partition(steps_s, middles)  # np.median takes ten times as long for a clip
        return max(float(around[middles[0]] + around[middles[1]]) / 2, 1e-6)

    @property
    def slack_s(self) -> float:
        """How early a frame may begin that still begins in a span; less than a frame lasts."""
        return min(SLACK_S, self.interval_s / 2, self.end_s / 2)

    def time_of(self, pts: int | None, order: int) -> float:
        """Seconds of a decoded frame; `order` counts decoded frames where there are no stamps."""
        if pts is not None and len(self.pts):
            at = int(self.pts.searchsorted(pts))
            if at < len(self.pts) and self.pts[at] == pts:  # nearly always, and five times as fast
                return float(self.times_s[at])
            return float(np.interp(pts, self.pts, self.times_s))
        beyond = max(0, order - self.num_frames + 1)
        return float(self.times_s[order - beyond]) + beyond * self.interval_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline(FrameTimes):
    """The same, and how large frames are, which only a decoded one says.

    Attributes:
        width: Pixels, upright and with square pixels.
        height: Likewise.
    """

    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The frames [first, stop) of a timeline, shown from `start_s` to `end_s`."""

    first: int
    stop: int
    start_s: float
    end_s: float


def cut(timeline: FrameTimes, span: TimeSpan | None) -> Cut:
    """The frames that begin within `span`; a span that runs past the end stops there.

    Raises:
        DataError: The span lies after the end of the file.
    """
    if span is None:
        return Cut(first=0, stop=timeline.num_frames, start_s=0.0, end_s=timeline.end_s)
    times_s, slack_s = timeline.times_s, timeline.slack_s
    if span.start_s >= timeline.end_s - slack_s:
        raise DataError(f"the span {span} begins after the file's end at {timeline.end_s:.2f} s")
    first = int(np.searchsorted(times_s, span.start_s - slack_s))
    stop = int(np.searchsorted(times_s, span.end_s - slack_s))
    if stop <= first:  # within the display of one frame, which is then all there is to see
        first = max(0, min(first, stop) - 1)
        stop = first + 1
    end_s = float(times_s[stop]) if stop < timeline.num_frames else timeline.end_s
    if end_s > span.end_s:  # a frame that is held for long must not stretch the clip far beyond
        end_s = min(end_s, max(span.end_s, float(times_s[stop - 1]) + timeline.interval_s))
    return Cut(first=first, stop=stop, start_s=float(times_s[first]), end_s=end_s)


def retimed_count(duration_s: float, fps: float) -> int:
    """Frames of a clip at `fps`: ⌊duration · fps⌋, and at least 1."""
    return max(1, floor(duration_s * fps + _COUNT_SLACK))


def facts_of(timeline: Timeline, span: TimeSpan | None) -> MediaFacts:
    """What a probe says of a span: frames counted from packets, mean rate over the span.

    Raises:
        DataError: The span lies after the end of the file.
    """
    part = cut(timeline, span)
    num_frames = part.stop - part.first
    is_still = timeline.num_frames == 1
    return MediaFacts(
        width=timeline.width,
        height=timeline.height,
        fps=0.0 if is_still else num_frames / (part.end_s - part.start_s),
        num_frames=num_frames,
        is_estimated=not is_still,
    )


def joined_stamps(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Ascending stamps of a video whose clock began anew with each part, as if it had gone on.

    A part begins a usual step after the last frame of the part before.
    """
    joined = np.sort(parts[0])
    for part in parts[1:]:
        stamps = np.sort(part)
        steps = np.diff(joined if len(joined) > 1 else stamps)
        step = int(np.median(steps)) if len(steps) else 1
        joined = np.concatenate([joined, stamps - stamps[0] + joined[-1] + max(step, 1)])
    return joined


def seconds_of_stamps(
    pts: NDArray[np.int64], time_base: Fraction, rate: Fraction | None, last_ticks: int
) -> tuple[NDArray[np.float64], float]:
    """Times in seconds and the end, from ascending stamps.

    Stamps that are those of a constant `rate`, rounded, become exact multiples of 1/rate; jumps of
    the clock are closed. `last_ticks` is the last frame's duration; 0 where it is not known.
    """
    tick_s = float(time_base)
    times_s = (pts - pts[0]).astype(np.float64) * tick_s
    if rate:
        exact_s = np.arange(len(pts)) / float(rate)
        # In coarse ticks one frame that is left out makes half an interval at least.
        if np.abs(times_s - exact_s).max() <= min(1.5 * tick_s, 0.25 / float(rate)):
            return exact_s, len(pts) / float(rate)
    steps_s = np.diff(times_s)
    interval_s = float(np.median(steps_s)) if len(steps_s) else (1.0 / float(rate) if rate else 0.0)
    is_jump = (steps_s > _GAP_S) & (steps_s > _GAP_INTERVALS * interval_s)
    times_s = np.concatenate([[0.0], np.cumsum(np.where(is_jump, interval_s, steps_s))])
    last_s = last_ticks * tick_s
    if not 0.0 < last_s <= max(_GAP_S, interval_s):
        last_s = interval_s
    return times_s, float(times_s[-1]) + max(last_s, 1e-6)
