"""A clip as a dataset lists it, before it is known what a missing caption means."""

from dataclasses import dataclass

from arachne.core.clip import TimeSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncaptioned:
    """A clip whose caption may be missing (None or empty), and then has no other ones.

    Attributes:
        fault: Why it cannot be trained, as `Clip` has it.
    """

    path: str
    caption: str | None
    span: TimeSpan | None = None
    other_captions: tuple[str, ...] = ()
    fault: str = ""
