"""The section `[run]` of a run file."""

from dataclasses import dataclass
from typing import Literal

from arachne.trainer.settings.checks import at_least, local_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """`[run]`.

    Attributes:
        dir: Folder for checkpoints, logs and the report.
        steps: Optimizer steps of the whole run.
        seed: Seed of clip order, noise, timesteps, caption dropout and initial weights.
        ranks: Ranks that `arachne train` starts by itself; 0 = one per GPU, or per CPU core up
            to 8. Under torchrun its world counts.
        device: `auto` takes GPUs with NCCL where there are some, else CPU with gloo.
        timeout_s: A rank that answers nothing for this long ends the run.
        max_groups: Process groups that a rank is in at most, beside that of all ranks; those least
            recently used are given up between steps. 0 = all that plans may name, for the whole
            run.
        max_bad_steps: So many steps in a row that could not be trained end the run; 0 = it goes on.
    """

    dir: str
    steps: int
    seed: int = 0
    ranks: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    timeout_s: float = 600.0
    max_groups: int = 0
    max_bad_steps: int = 10

    def __post_init__(self) -> None:
        local_folder("run", dir=self.dir)
        at_least("run", 1, steps=self.steps)
        at_least("run", 0, max_groups=self.max_groups)
        at_least("run", 0, max_bad_steps=self.max_bad_steps)
        at_least("run", 1, most=1e7, timeout_s=self.timeout_s)
        at_least("run", 0, most=1e5, ranks=self.ranks)
        at_least("run", 0, most=2**63 - 1, seed=self.seed)
