"""The section `[batch]` of a run file."""

from dataclasses import dataclass

from arachne.trainer.settings.checks import at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """`[batch]`: `clips` of one optimizer step, over all ranks."""

    clips: int = 8

    def __post_init__(self) -> None:
        at_least("batch", 1, most=1e6, clips=self.clips)
