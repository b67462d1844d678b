"""A trace: what every rank did during one iteration, measured or simulated."""

from dataclasses import dataclass
from typing import Literal

SpanKind = Literal["compute", "communicate", "handoff", "wait", "load", "reduce", "optimizer"]

BUSY_KINDS: frozenset[SpanKind] = frozenset(
    {"compute", "communicate", "handoff", "reduce", "optimizer"}
)
"""Kinds that count as busy: computing, and moving bytes that this rank's own work needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One stretch of work on one rank, in seconds from the iteration's start.

    Attributes:
        rank: Who.
        kind: `handoff` brings a launch what its encoders made. `wait` is waiting for other ranks,
            in a launch or before the reduction; `load` is waiting for data. Both are idle.
        start_s: When it began.
        end_s: When it ended.
        launch: Index of the launch in the placed plan; None outside launches.
    """

    rank: int
    kind: SpanKind
    start_s: float
    end_s: float
    launch: int | None = None

    @property
    def duration_s(self) -> float:
        """Length of the span."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """All spans of one iteration; the executor and the simulator return the same type.

    Attributes:
        step: The iteration.
        planner: Who planned it.
        world_size: Ranks, with or without spans.
        is_measured: False for a simulated trace.
        spans: Ordered by (rank, start).
    """

    step: int
    planner: str
    world_size: int
    is_measured: bool
    spans: tuple[Span, ...]

    @property
    def iteration_s(self) -> float:
        """From the iteration's start to its last span's end."""
        return max((span.end_s for span in self.spans), default=0.0)

    @property
    def makespan_s(self) -> float:
        """From the iteration's start to the end of its last launch."""
        return max((span.end_s for span in self.spans if span.launch is not None), default=0.0)

    def busy_s(self, rank: int) -> float:
        """Seconds in which one rank computed or moved bytes of its own work."""
        return sum(s.duration_s for s in self.spans if s.rank == rank and s.kind in BUSY_KINDS)

    @property
    def idle_ratio(self) -> float:
        """1 − busy GPU-seconds / (GPUs × iteration seconds); rounding makes it no less than 0."""
        available_s = self.world_size * self.iteration_s
        if available_s == 0.0:
            return 0.0
        busy_s = sum(span.duration_s for span in self.spans if span.kind in BUSY_KINDS)
        return max(0.0, 1.0 - busy_s / available_s)

    def launch_interval_s(self, launch: int) -> tuple[float, float] | None:
        """Start and end of a launch over all its ranks; None if it has no span."""
        spans = [span for span in self.spans if span.launch == launch]
        if not spans:
            return None
        return min(s.start_s for s in spans), max(s.end_s for s in spans)
