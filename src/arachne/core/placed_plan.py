"""A placed plan: launches that know their ranks; what the executor and the simulator run."""

import hashlib
from dataclasses import dataclass

from arachne.core.cascade import Cascade
from arachne.core.launch_mode import WHOLE, LaunchMode
from arachne.core.strict_json import from_json, to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedLaunch:
    """A cascade with its ranks and its modelled start and duration.

    Attributes:
        cascade: What runs.
        ranks: Global ranks, ascending; their number is the parallel degree.
        start_s: Modelled start, from the iteration's start.
        duration_s: Modelled duration on these ranks.
        phase: Starts only when all launches of lower phases have ended on every rank; 0 in all
            plans that the executor runs.
        mode: How it runs on its ranks.
    """

    cascade: Cascade
    ranks: tuple[int, ...]
    start_s: float
    duration_s: float
    phase: int = 0
    mode: LaunchMode = WHOLE

    @property
    def degree(self) -> int:
        """Ranks that the cascade is split over."""
        return len(self.ranks)

    @property
    def end_s(self) -> float:
        """When the launch's ranks are free again."""
        return self.start_s + self.duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPlan:
    """The launches of one iteration on ranks, in the one global order.

    Attributes:
        step: The iteration it is for.
        planner: Name of the planner that made it.
        world_size: Ranks, used or not.
        launches: Every rank runs those that name it, in this order.
    """

    step: int
    planner: str
    world_size: int
    launches: tuple[PlacedLaunch, ...]

    @property
    def makespan_s(self) -> float:
        """Modelled end of the last launch; reduction not counted."""
        return max((launch.end_s for launch in self.launches), default=0.0)

    @property
    def digest(self) -> str:
        """SHA-256 of the JSON form; all ranks compare it before a step's first launch."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def on_rank(self, rank: int) -> tuple[tuple[int, PlacedLaunch], ...]:
        """A rank's launches with their index in the plan, in order."""
        return tuple((i, launch) for i, launch in enumerate(self.launches) if rank in launch.ranks)

    def to_json(self) -> str:
        """One launch a line, so that a changed plan reads as a diff."""
        rows = ",\n".join("  " + to_json(launch) for launch in self.launches)
        body = f"[\n{rows}\n]" if rows else "[]"
        return (
            f'{{"step": {self.step}, "planner": {to_json(self.planner)}, '
            f'"world_size": {self.world_size}, "launches": {body}}}\n'
        )

    @classmethod
    def from_json(cls, text: str) -> "PlacedPlan":
        """Read what `to_json` wrote.

        Raises:
            DataError: The text is not a placed plan.
        """
        return from_json(text, cls, what="plan", written=cls.to_json)
