"""A placed plan: launches that know their ranks; what the executor and the simulator run."""

import hashlib
from dataclasses import dataclass

import msgspec

from arachne.core.cascade import Cascade
from arachne.core.errors import ArachneError, DataError
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


class _DigestOnce:
    """Where a plan keeps its digest, which every step compares."""

    __slots__ = ("_digest",)

    _digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPlan(_DigestOnce):
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
        try:
            return self._digest
        except AttributeError:
            return self._with_digest_of(self.to_json())._digest

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

    @classmethod
    def received(cls, text: str) -> "PlacedPlan":
        """Read what `to_json` wrote in another process of this run: that no key is unknown is not
        looked at, and the digest is that of the text, so that each rank reads it once, fast.

        Raises:
            DataError: The text is not a placed plan.
        """
        try:
            plan = msgspec.json.decode(text, type=cls)
        except (msgspec.MsgspecError, AssertionError, ArachneError) as error:
            raise DataError(f"plan cannot be read: {error}") from error
        return plan._with_digest_of(text)

    def _with_digest_of(self, text: str) -> "PlacedPlan":
        object.__setattr__(self, "_digest", hashlib.sha256(text.encode()).hexdigest())
        return self
