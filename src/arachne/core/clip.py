"""A clip: one video span or image with its caption, as the dataset names it."""

from dataclasses import dataclass, field, replace

from arachne.core.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpan:
    """Part of a file, in seconds from its first frame; `end_s` is exclusive."""

    start_s: float
    end_s: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.start_s < self.end_s < float("inf"):
            raise DataError(f"span {self} must start at 0 s or later and end after its start")

    def __str__(self) -> str:
        return f"{self.start_s:.2f}-{self.end_s:.2f}s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """One row of a dataset, or a piece of what a row lists.

    Attributes:
        path: Path of the file, relative to the dataset's root, with forward slashes.
        caption: What the clip shows; the empty string is a caption that the user allowed.
        span: The part of the file that the dataset lists; None is the whole file.
        piece: The part of that, in seconds of the file, which an extraction mode took; None is all.
        other_captions: What it is also described by; each time it trains, one of all is taken.
        dataset: Which of a run's datasets it is of; empty if there is one.
        fault: Why it cannot be trained, as far as its list alone says; empty if nothing does. Not
            compared: manifests have it as the row's reason.
    """

    path: str
    caption: str
    span: TimeSpan | None = None
    piece: TimeSpan | None = None
    other_captions: tuple[str, ...] = ()
    dataset: str = ""
    fault: str = field(default="", compare=False)

    @property
    def captions(self) -> tuple[str, ...]:
        """All that it is described by."""
        return (self.caption, *self.other_captions)

    @property
    def part(self) -> TimeSpan | None:
        """The part of the file that is decoded; None is the whole file."""
        return self.piece or self.span

    @property
    def listed(self) -> "Clip":
        """The row of the dataset that this is a piece of."""
        return replace(self, piece=None)

    @property
    def name(self) -> str:
        """How messages and ledgers call the clip: `a/b.mp4@1.00-3.50s`, `stills:a/b.png`."""
        path = f"{self.dataset}:{self.path}" if self.dataset else self.path
        return path if self.part is None else f"{path}@{self.part}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaFacts:
    """What a probe found in a file, after rotation and pixel aspect were applied.

    Attributes:
        width: Pixels, as shown upright with square pixels.
        height: Pixels, likewise.
        fps: Mean frames per second; 0 for an image.
        num_frames: Frames of the clip's span; 1 for an image.
        is_estimated: True while the count comes from packets, not from decoding.
    """

    width: int
    height: int
    fps: float
    num_frames: int
    is_estimated: bool
