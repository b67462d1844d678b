"""The section `[objective]` of a run file."""

from dataclasses import dataclass
from math import inf
from typing import Literal

from arachne.core.errors import ConfigError
from arachne.trainer.settings.checks import share


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveSettings:
    """`[objective]`: flow matching.

    Attributes:
        timestep_sampling: Distribution of the noise level before the shift.
        shift: Flow shift: sigma becomes shift·sigma / (1 + (shift − 1)·sigma).
        caption_dropout: Share of clips that train without their caption.
        weighting: What a clip counts in the loss: each `clip` the same, or by its `token`s.
    """

    timestep_sampling: Literal["uniform", "logit_normal"] = "logit_normal"
    shift: float = 3.0
    caption_dropout: float = 0.1
    weighting: Literal["clip", "token"] = "clip"

    def __post_init__(self) -> None:
        share("objective", caption_dropout=self.caption_dropout)
        if not 0.0 < self.shift < inf:
            raise ConfigError(
                f"objective.shift is {self.shift}; it must be above 0"
                + (", and finite" if self.shift == inf else "")
            )
