"""The section `[validation]` of a run file."""

from dataclasses import dataclass

from arachne.trainer.settings.checks import at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationSettings:
    """`[validation]`: held-out loss at fixed noise, `every` steps (0 = never).

    Attributes:
        every: Steps between two validations.
        noises: Noise levels per clip, spread evenly over the timestep range.
        clips: Most clips of one validation, chosen by content; 0 = no limit.
    """

    every: int = 0
    noises: int = 2
    clips: int = 64

    def __post_init__(self) -> None:
        at_least("validation", 0, every=self.every, clips=self.clips)
        at_least("validation", 1, most=10_000, noises=self.noises)
