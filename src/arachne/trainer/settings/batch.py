"""The section `[batch]` of a run file."""

from dataclasses import dataclass
from typing import Literal

from arachne.core.errors import ConfigError
from arachne.trainer.settings.checks import at_least

Unit = Literal["clips", "tokens", "tflops"]

_USUAL_CLIPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """`[batch]`: what one optimizer step trains, over all ranks; one of these counts, others are 0.

    Attributes:
        clips: So many clips; 8 where nothing is said.
        tokens: As many clips as have so many video tokens, in the mean over steps.
        tflops: As many clips as take so many TFLOPs to train, likewise.
    """

    clips: int = 0
    tokens: int = 0
    tflops: float = 0.0

    def __post_init__(self) -> None:
        at_least("batch", 0, most=1e6, clips=self.clips)
        at_least("batch", 0, most=1e12, tokens=self.tokens, tflops=self.tflops)
        given = [name for name in ("clips", "tokens", "tflops") if getattr(self, name)]
        if len(given) > 1:
            raise ConfigError(
                f"batch.{given[0]} and batch.{given[1]} are both set; a step is measured in one of "
                "clips, tokens and tflops: set the others to 0, or leave them out"
            )
        if not given:
            object.__setattr__(self, "clips", _USUAL_CLIPS)

    @property
    def unit(self) -> Unit:
        """What a step is measured in."""
        return "clips" if self.clips else "tokens" if self.tokens else "tflops"

    @property
    def text(self) -> str:
        """How much one step trains, in words."""
        amount: float = getattr(self, self.unit)
        if self.unit == "tflops":
            return f"{amount:,.12g} TFLOPs"
        return f"{amount:,} {self.unit if amount != 1 else self.unit[:-1]}"
