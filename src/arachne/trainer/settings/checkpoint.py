"""The section `[checkpoint]` of a run file."""

from dataclasses import dataclass
from typing import Literal

from arachne.trainer.settings.checks import at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """`[checkpoint]`.

    Attributes:
        every: Steps between two checkpoints; 0 = only at the end.
        keep: The newest ones that stay; 0 = all.
        keep_every: Checkpoints of steps that this divides stay in any case; 0 = none.
        on_error: What happens when a checkpoint cannot be written while the run goes on: it stops,
            or it says so and goes on. At its end a run that has not saved its last state fails.
    """

    every: int = 100
    keep: int = 3
    keep_every: int = 0
    on_error: Literal["stop", "continue"] = "stop"

    def __post_init__(self) -> None:
        at_least("checkpoint", 0, every=self.every, keep=self.keep, keep_every=self.keep_every)
