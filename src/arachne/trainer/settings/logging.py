"""The section `[logging]` of a run file."""

from dataclasses import dataclass
from typing import Literal

from arachne.trainer.settings.checks import at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingSettings:
    """`[logging]`: numbers always go to `metrics.jsonl` in the run's folder, and where else.

    Attributes:
        every: Steps between two lines of progress.
        trace_every: Steps between two traces, the spans of all ranks (0 = none).
        tensorboard: Whether TensorBoard event files are written to `tensorboard/`.
        wandb: Project at Weights & Biases; empty for none. Needs the extra `wandb`.
        on_error: What happens when a file of the run other than a checkpoint cannot be written: the
            run stops, or it says so and goes on without what the file lacks.
    """

    every: int = 1
    trace_every: int = 10
    tensorboard: bool = True
    wandb: str = ""
    on_error: Literal["stop", "continue"] = "stop"

    def __post_init__(self) -> None:
        at_least("logging", 1, every=self.every)
        at_least("logging", 0, trace_every=self.trace_every)
