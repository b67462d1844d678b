"""A plan: which cascade runs when, on which abstract GPU slots."""

from dataclasses import dataclass

from arachne.core.cascade import Cascade
from arachne.core.launch_mode import WHOLE, LaunchMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A cascade with its GPU slots and its start.

    Attributes:
        cascade: What runs.
        gpus: GPU slots, ascending; their number is the cascade's parallel degree.
        start_s: Modelled start, from the iteration's start.
        duration_s: Modelled duration.
        phase: A launch starts only when all launches of lower phases have ended on every GPU. Our
            planners use phase 0 alone; the lockstep of other systems needs more.
        mode: How it runs on its GPUs.
    """

    cascade: Cascade
    gpus: tuple[int, ...]
    start_s: float
    duration_s: float
    phase: int = 0
    mode: LaunchMode = WHOLE

    def __post_init__(self) -> None:
        assert self.phase >= 0, self.phase
        assert self.gpus, "a launch needs at least one GPU"
        assert list(self.gpus) == sorted(set(self.gpus)), self.gpus
        assert len(self.gpus) % self.mode.ring == 0, (self.gpus, self.mode)

    @property
    def degree(self) -> int:
        """GPUs that the cascade is split over."""
        return len(self.gpus)

    @property
    def end_s(self) -> float:
        """When the launch's GPUs are free again."""
        return self.start_s + self.duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The launches of one iteration, in the one global order in which every GPU runs its own.

    Attributes:
        planner: Name of the planner that made it.
        num_gpus: GPU slots, used or not.
        launches: Ordered by (start, GPUs), which keeps phases in order too.
    """

    planner: str
    num_gpus: int
    launches: tuple[Launch, ...]

    @property
    def makespan_s(self) -> float:
        """From the iteration's start to the end of its last launch; reduction not counted."""
        return max((launch.end_s for launch in self.launches), default=0.0)
