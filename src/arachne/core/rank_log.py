"""What one rank recorded during one iteration, and how the logs of all ranks become a trace.

A rank cannot tell by itself how much of a collective was waiting for others. Together the logs can:
a collective starts for all when its last member arrives, so each member waited until then.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from arachne.core.trace import Span, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEvent:
    """A span as one rank saw it.

    Attributes:
        span: The span; a collective is `communicate` inside a launch and `reduce` outside.
        meeting: For a collective its running number within (launch), equal on all its members;
            None for work that meets nobody.
    """

    span: Span
    meeting: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLog:
    """All events of one rank in one iteration, ordered by start."""

    step: int
    planner: str
    rank: int
    world_size: int
    events: tuple[RankEvent, ...]


def trace_from_logs(logs: Sequence[RankLog]) -> Trace:
    """Join the logs of all ranks of one step; collectives are split into waiting and moving.

    Logs hold seconds on clocks that agree between ranks, from any origin; the trace starts at 0,
    where the first rank began.
    """
    assert logs, "a trace needs at least one log"
    origin_s = min((e.span.start_s for log in logs for e in log.events), default=0.0)
    arrivals_s: dict[tuple[int | None, int], float] = defaultdict(lambda: -inf)
    for log in logs:
        for event in log.events:
            if event.meeting is not None:
                key = (event.span.launch, event.meeting)
                arrivals_s[key] = max(arrivals_s[key], event.span.start_s)
    spans: list[Span] = []
    for log in logs:
        for event in log.events:
            if event.meeting is None:
                spans.append(event.span)
            else:
                spans += _split(event.span, arrivals_s[event.span.launch, event.meeting])
    return Trace(
        step=logs[0].step,
        planner=logs[0].planner,
        world_size=logs[0].world_size,
        is_measured=True,
        spans=tuple(
            replace(span, start_s=span.start_s - origin_s, end_s=span.end_s - origin_s)
            for span in sorted(spans, key=lambda span: (span.rank, span.start_s, span.end_s))
        ),
    )


def _split(span: Span, all_here_s: float) -> list[Span]:
    """The part before the last member arrived is waiting."""
    moving_from_s = min(max(all_here_s, span.start_s), span.end_s)
    parts = [
        replace(span, kind="wait", end_s=moving_from_s),
        replace(span, start_s=moving_from_s),
    ]
    return [part for part in parts if part.end_s > part.start_s]
