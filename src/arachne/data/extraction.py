"""Which pieces of a long clip train: the modes that video trainers have, under their names.

With frames counted at the model's rate, and `frames` the length that a piece is to have:

| mode | pieces |
|---|---|
| head | the first `frames` |
| middle | `frames` from the middle |
| uniform | `frame_sample` pieces, the first at the start, the last at the end, evenly between |
| chunk | one after the other, as many as are whole |
| slide | one begins every `frame_stride` frames |
| full | all, cut to the nearest legal length of at most `max_frames` |

Names and meaning are those of musubi-tuner; `middle` is diffusion-pipe's `single_middle`. There
every listed length gives pieces; here each clip has one length, the longest that it fills. A video
that fills a still alone gives a single one by chunk and slide, not one for each of its frames.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Literal

import numpy as np

from arachne.core.clip import TimeSpan
from arachne.core.errors import ConfigError
from arachne.core.model_shape import Geometry
from arachne.data.timeline import SLACK_S, Cut, Timeline, retimed_count

Mode = Literal["head", "middle", "uniform", "chunk", "slide", "full"]

_USED_BY: dict[str, Mode] = {
    "frame_sample": "uniform",
    "frame_stride": "slide",
    "max_frames": "full",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """A mode and its numbers; a number that its mode does not read keeps its default."""

    mode: Mode = "head"
    frame_sample: int = 2
    frame_stride: int = 16
    max_frames: int = 129

    def __post_init__(self) -> None:
        for name, mode in _USED_BY.items():
            value = getattr(self, name)
            if value < 1:
                raise ConfigError(f"data.{name} is {value}; it must be at least 1")
            if mode != self.mode and value != _default_of(name):
                raise ConfigError(
                    f"data.{name} does nothing in mode {self.mode!r}; leave it out, or set "
                    f"data.frame_extraction = {mode!r}"
                )

    def check(self, geometry: Geometry) -> None:
        """Refuse a longest length that the model would cut in silence.

        Raises:
            ConfigError: Names the nearest legal lengths.
        """
        legal = geometry.legal_frames_up_to(self.max_frames)
        if self.mode == "full" and legal != self.max_frames:
            raise ConfigError(
                f"data.max_frames is {self.max_frames}, but the model takes "
                f"{geometry.frame_step}k+1 frames; use {legal} or {legal + geometry.frame_step}"
            )

    def starts(self, count: int, frames: int) -> tuple[int, ...]:
        """First frames of the pieces of `frames` that are taken of `count` frames, ascending."""
        assert 1 <= frames <= count, (frames, count)
        last = count - frames
        match self.mode:
            case "head" | "full":
                return (0,)
            case "middle":
                return (last // 2,)
            case "uniform":
                num_pieces = min(self.frame_sample, last + 1)
                gaps = max(1, num_pieces - 1)
                places = {number * last // gaps for number in range(num_pieces)}
                return tuple(sorted(places))
            case "chunk" | "slide":
                stride = frames if self.mode == "chunk" else self.frame_stride
                return (0,) if frames == 1 else tuple(range(0, last + 1, stride))


def num_covered(starts: Sequence[int], frames: int) -> int:
    """Frames that are in one of the pieces at least."""
    return sum(min(frames, after - before) for before, after in pairwise(starts)) + frames


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceSpan:
    """A piece that trains.

    Attributes:
        number: Which of the starts it begins at, counted from 0.
        span: What of the file it is.
    """

    number: int
    span: TimeSpan


def piece_spans(
    timeline: Timeline, part: Cut, starts: Sequence[int], frames: int, fps: float
) -> tuple[PieceSpan, ...]:
    """The pieces of a part that begin at some frames at `fps`, each piece once.

    Where a source frame is shown for long, several starts may lie within it: they give one piece,
    called after the first of them.
    """
    numbers: dict[TimeSpan, int] = {}
    for number, start in enumerate(starts):
        numbers.setdefault(piece_span(timeline, part, start, frames, fps), number)
    return tuple(PieceSpan(number=number, span=span) for span, number in numbers.items())


def piece_span(timeline: Timeline, part: Cut, start: int, frames: int, fps: float) -> TimeSpan:
    """Where in a file the piece lies that begins `start` frames at `fps` into a part of it.

    It begins with the source frame that is shown at that moment, and ends with the one whose
    display completes `frames` frames.
    """
    times_s = timeline.times_s
    shown_s = part.start_s + start / fps + SLACK_S
    first = int(np.searchsorted(times_s, shown_s, side="right")) - 1
    first = min(max(first, part.first), part.stop - 1)
    begin_s = float(times_s[first])

    def num_frames(stop: int) -> int:
        return retimed_count(_shown_until_s(timeline, part, stop) - begin_s, fps)

    stops = range(first + 1, part.stop)
    stop = first + 1 + bisect_left(stops, frames, key=num_frames)
    return TimeSpan(start_s=begin_s, end_s=_shown_until_s(timeline, part, stop))


def _shown_until_s(timeline: Timeline, part: Cut, stop: int) -> float:
    """When the display of the frame before `stop` ends."""
    return float(timeline.times_s[stop]) if stop < part.stop else part.end_s


def _default_of(name: str) -> object:
    return next(field.default for field in fields(Extraction) if field.name == name)
