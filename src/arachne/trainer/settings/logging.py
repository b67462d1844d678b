"""The section `[logging]` of a run file."""

from dataclasses import dataclass

from arachne.trainer.settings.checks import at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingSettings:
    """`[logging]`.

    Attributes:
        every: Steps between two lines of progress.
        trace_every: Steps between two traces, the spans of all ranks (0 = none).
    """

    every: int = 1
    trace_every: int = 10

    def __post_init__(self) -> None:
        at_least("logging", 1, every=self.every)
        at_least("logging", 0, trace_every=self.trace_every)
