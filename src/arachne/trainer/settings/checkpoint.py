"""The section `[checkpoint]` of a run file."""

from dataclasses import dataclass

from arachne.trainer.settings.checks import at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """`[checkpoint]`: `every` steps (0 = only at the end), `keep` the newest ones (0 = all)."""

    every: int = 100
    keep: int = 3

    def __post_init__(self) -> None:
        at_least("checkpoint", 0, every=self.every, keep=self.keep)
