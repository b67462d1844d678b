"""The section `[planner]` of a run file."""

from dataclasses import dataclass
from typing import Literal

from arachne.trainer.settings.checks import at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerSettings:
    """`[planner]`.

    Attributes:
        name: Which planner; `arachne` or a baseline.
        iterations: Search steps after the warm start; more is better and slower.
        budget_s: Seconds that planning a step may take: chooses `iterations` ahead, by the number
            of GPUs and clips, so that plans depend on no clock. 0 leaves them as they are.
        max_degree: Most ranks that one cascade may use; 0 = no limit but the world and, on GPUs,
            the attention heads.
        stack_tokens: Clips of one shape are stacked while a cascade has at most this many tokens.
        timeout_s: A plan later than this is replaced by the static fallback plan.
        recompute: Whether launches compute activations twice: as far as memory asks for it
            (`auto`), never, or all of them.
        fill: With `data.encode = "online"`: the next step's clips are encoded where GPUs have
            nothing left to train in this step; if not, each step encodes its own first.
        ring: `auto` may split a degree into Ulysses groups on a ring.
        recalibrate_every: Steps between two corrections of the cost model by measured launches;
            0 keeps it as it was at the start, so that a resumed run makes the same plans.
    """

    name: str = "arachne"
    iterations: int = 2000
    budget_s: float = 0.0
    max_degree: int = 0
    stack_tokens: int = 1024
    timeout_s: float = 30.0
    recompute: Literal["auto", "none", "all"] = "auto"
    ring: Literal["auto", "none"] = "auto"
    fill: bool = True
    recalibrate_every: int = 10

    def __post_init__(self) -> None:
        at_least("planner", 0, iterations=self.iterations, max_degree=self.max_degree)
        at_least("planner", 0, stack_tokens=self.stack_tokens)
        at_least("planner", 0, recalibrate_every=self.recalibrate_every)
        at_least("planner", 0, most=1e7, budget_s=self.budget_s, timeout_s=self.timeout_s)
