"""From what a file holds to the bucket that its clip trains in, with the arithmetic shown."""

from dataclasses import dataclass, field
from math import ceil, sqrt

from arachne.core.bucket import Bucket
from arachne.core.clip import MediaFacts
from arachne.core.errors import ConfigError
from arachne.core.ledger import Status
from arachne.core.model_shape import Geometry
from arachne.core.units import count_text, percent_text
from arachne.data.extraction import Extraction, num_covered
from arachne.data.frame_size import (
    Fit,
    FrameSize,
    NoFrameSize,
    frame_size,
    parsed_aspect,
    reached_resolution,
    window_of_frame,
)
from arachne.data.timeline import retimed_count


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeRules:
    """What clips are brought to.

    Attributes:
        fps: Frames per second that the model learns.
        resolution: A frame has at most `resolution * resolution` pixels. Of several each clip takes
            the largest that it reaches without being scaled up, or else the least.
        frame_buckets: Legal lengths; stills always take 1.
        aspects: Ratios of width to height that clips are brought to, as `16:9`; the nearest one
            counts. Without any, each clip keeps its own.
        upscale: Whether frames smaller than the resolution are scaled up to it.
        fit: Whether what does not fit a size is cropped, or set in black.
        extraction: Which pieces of a clip train that is longer than its length.
    """

    fps: float
    resolution: int | tuple[int, ...]
    frame_buckets: tuple[int, ...]
    aspects: tuple[str, ...] = ()
    upscale: bool = False
    fit: Fit = "crop"
    extraction: Extraction = field(default_factory=Extraction)

    def __post_init__(self) -> None:
        if not 0.1 <= self.fps <= 240.0:
            raise ConfigError(f"data.fps is {self.fps}; it must be between 0.1 and 240")
        if not self.resolutions:
            raise ConfigError("data.resolution is empty; name at least one, such as 480")
        if min(self.resolutions) < 1:
            raise ConfigError(f"data.resolution is {self.resolution}; it must be at least 1")
        if not self.frame_buckets:
            raise ConfigError("data.frame_buckets is empty; name at least one length, such as 81")
        for aspect in self.aspects:
            parsed_aspect(aspect)

    @property
    def resolutions(self) -> tuple[int, ...]:
        """All resolutions, one or more."""
        return (self.resolution,) if isinstance(self.resolution, int) else self.resolution

    @property
    def area_text(self) -> str:
        """`at most 256 x 256 or 480 x 480 pixels`."""
        return f"at most {' or '.join(f'{r} x {r}' for r in sorted(self.resolutions))} pixels"

    @property
    def lengths_text(self) -> str:
        """`1, 17, 33` frames, or `at most 129`."""
        if self.extraction.mode == "full":
            return f"at most {self.extraction.max_frames}"
        return ", ".join(map(str, self.frame_buckets))

    def window_of(self, facts: MediaFacts) -> tuple[float, float]:
        """Width and height of what is brought to a size: a clip's frame, a part of it, or what it
        is set in.
        """
        ratios = [parsed_aspect(aspect) for aspect in self.aspects]
        return window_of_frame(facts.width, facts.height, ratios, self.fit)

    def resolution_of(self, facts: MediaFacts) -> int:
        """The resolution that a clip trains in."""
        return reached_resolution(self.window_of(facts), self.resolutions)

    def size_of(self, facts: MediaFacts, geometry: Geometry) -> FrameSize | NoFrameSize:
        """The width and height that a clip trains in."""
        return frame_size(
            facts.width,
            facts.height,
            self.resolution_of(facts),
            geometry.side_multiple,
            aspects=[parsed_aspect(aspect) for aspect in self.aspects],
            upscale=self.upscale,
            fit=self.fit,
        )

    def check(self, geometry: Geometry) -> None:
        """Refuse lengths that the model would cut in silence, and areas below its smallest frame.

        Raises:
            ConfigError: Names the length or resolution, and the nearest legal ones.
        """
        width, height = geometry.side_multiple
        for resolution in self.resolutions:
            if resolution**2 < width * height:
                raise ConfigError(
                    f"a resolution of {resolution} (data.resolution) is below the model's smallest "
                    f"frame of {width}x{height} pixels; use at least {ceil(sqrt(width * height))}"
                )
        self.extraction.check(geometry)
        if self.extraction.mode == "full":
            return
        for frames in self.frame_buckets:
            legal = geometry.legal_frames_up_to(frames)
            if legal != frames:
                above = legal if frames < legal else legal + geometry.frame_step
                nearest = f"{legal}" if frames < legal else f"{legal} or {above}"
                raise ConfigError(
                    f"data.frame_buckets holds {frames}, but the model takes "
                    f"{geometry.frame_step}k+1 frames; use {nearest}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaping:
    """What becomes of a clip: the fields of its ledger rows that follow from its shape.

    Attributes:
        starts: Where each piece that trains begins, in frames at the model's rate; none if the
            clip is rejected, (0,) for most.
        count: Frames of the whole clip at that rate.
    """

    bucket: Bucket | None
    arithmetic: str
    status: Status
    reason: str
    starts: tuple[int, ...]
    count: int

    @property
    def is_whole(self) -> bool:
        """Whether the clip as it is listed is one row: cut at most at its end, or rejected."""
        return self.starts in ((0,), ())

    def piece_arithmetic(self, number: int) -> str:
        """The arithmetic of one piece: `200f@16 → 200f@16 → 81 (2 of 2, from 81)`."""
        if self.is_whole:
            return self.arithmetic
        place = f"{number + 1} of {len(self.starts)}, from {self.starts[number]}"
        return f"{self.arithmetic} ({place})"


def shape_of(facts: MediaFacts, rules: ShapeRules, geometry: Geometry) -> Shaping:
    """The bucket of a clip, the longest length that it fills in its own aspect ratio, and where
    the pieces of that length begin which train.
    """
    is_still = facts.fps == 0.0
    count = 1 if is_still else retimed_count(facts.num_frames / facts.fps, rules.fps)
    read = _frames_read(facts, rules.fps, count)
    frames = 1 if is_still else frames_of(count, rules, geometry)
    if frames is None:
        return Shaping(
            bucket=None,
            arithmetic=read,
            status="rejected",
            reason=_too_short(facts, rules, geometry, count),
            starts=(),
            count=count,
        )
    arithmetic = f"{read} → {frames}"
    size = rules.size_of(facts, geometry)
    if isinstance(size, NoFrameSize):
        return Shaping(
            bucket=None,
            arithmetic=arithmetic,
            status="rejected",
            reason=size.reason,
            starts=(),
            count=count,
        )
    starts = rules.extraction.starts(count, frames)
    notes = [
        _cut_note(rules, count, frames, starts),
        "" if is_still else _sample_note(rules, starts),
        _rate_note(facts, rules),
        _size_note(facts, size),
    ]
    return Shaping(
        bucket=Bucket(width=size.width, height=size.height, frames=frames),
        arithmetic=arithmetic,
        status="kept" if num_covered(starts, frames) == count else "trimmed",
        reason="; ".join(note for note in notes if note),
        starts=starts,
        count=count,
    )


def frames_of(count: int, rules: ShapeRules, geometry: Geometry) -> int | None:
    """The length that `count` frames at the model's rate are cut to; None if they fill none."""
    if rules.extraction.mode == "full":
        return geometry.legal_frames_up_to(min(count, rules.extraction.max_frames))
    return max((frames for frames in rules.frame_buckets if frames <= count), default=None)


def _frames_read(facts: MediaFacts, fps: float, count: int) -> str:
    """`101f@23.976 → 67f@16`, or `1f` for a still."""
    if facts.fps == 0.0:
        return "1f"
    return f"{facts.num_frames}f@{_rate_text(facts.fps)} → {count}f@{_rate_text(fps)}"


def _rate_text(fps: float) -> str:
    return f"{fps:.3f}".rstrip("0").rstrip(".")


def _too_short(facts: MediaFacts, rules: ShapeRules, geometry: Geometry, count: int) -> str:
    return (
        f"{count_text(facts.num_frames, 'frame')} at {_rate_text(facts.fps)} fps give {count} at "
        f"{_rate_text(rules.fps)} fps; the shortest length in data.frame_buckets needs "
        f"{min(rules.frame_buckets)}; nearest that fits: {geometry.legal_frames_up_to(count)}"
    )


def _cut_note(rules: ShapeRules, count: int, frames: int, starts: tuple[int, ...]) -> str:
    unused = count - num_covered(starts, frames)
    rest = f"{count_text(unused, 'frame')}{{}} {'is' if unused == 1 else 'are'} not used"
    if len(starts) > 1:
        pieces = f"{len(starts)} pieces of {count_text(frames, 'frame')}"
        return f"{pieces}; {rest.format('')}" if unused else pieces
    if not unused:
        return ""
    if frames == 1 and rules.extraction.mode != "full":
        shortest = min((f for f in rules.frame_buckets if f > 1), default=None)
        needed = f", shorter than {shortest} frames" if shortest else ""
        return f"used as a still{needed}; {rest.format('')}"
    before = min(starts, default=0)
    where = f" ({before} at the start)" if before else " at the end"
    return rest.format(where)


def _sample_note(rules: ShapeRules, starts: tuple[int, ...]) -> str:
    asked = rules.extraction.frame_sample
    if rules.extraction.mode != "uniform" or len(starts) == asked:
        return ""
    places = count_text(len(starts), "place")
    return f"{places} to begin at, fewer than data.frame_sample = {asked}"


def _rate_note(facts: MediaFacts, rules: ShapeRules) -> str:
    if not 0.0 < facts.fps < rules.fps * (1.0 - 1e-3):
        return ""
    return f"{_rate_text(facts.fps)} fps is below {_rate_text(rules.fps)}: frames are repeated"


def _size_note(facts: MediaFacts, size: FrameSize) -> str:
    if (facts.width, facts.height) == (size.width, size.height):
        return ""
    lost = f", {percent_text(size.cropped_share, 1)} cropped" if size.cropped_share >= 5e-4 else ""
    lost = f", {percent_text(size.black_share, 1)} black" if size.black_share >= 5e-4 else lost
    return f"{facts.width}x{facts.height} → {size.width}x{size.height}{lost}"
