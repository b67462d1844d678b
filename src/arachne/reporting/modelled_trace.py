"""A plan's promise as a trace, so that it can be drawn beneath what was measured."""

from arachne.core.placed_plan import PlacedPlan
from arachne.core.trace import Span, Trace


def modelled_trace(plan: PlacedPlan, step_s: float | None = None) -> Trace:
    """The spans that a plan promises.

    Each launch is one `compute` span on each of its ranks; a rank waits where it has none. What
    `step_s`, the modelled seconds of the whole step, holds beyond the last launch is the
    reduction, the optimizer and the gather of parameters; it appears as `reduce` on every rank.
    """
    makespan_s = plan.makespan_s
    end_s = max(makespan_s, step_s or 0.0)
    spans: list[Span] = []
    for rank in range(plan.world_size):
        free_s = 0.0
        for index, launch in plan.on_rank(rank):
            if launch.start_s > free_s:
                spans.append(Span(rank=rank, kind="wait", start_s=free_s, end_s=launch.start_s))
            spans.append(
                Span(
                    rank=rank,
                    kind="compute",
                    start_s=launch.start_s,
                    end_s=launch.end_s,
                    launch=index,
                )
            )
            free_s = launch.end_s
        if makespan_s > free_s:
            spans.append(Span(rank=rank, kind="wait", start_s=free_s, end_s=makespan_s))
        if end_s > makespan_s:
            spans.append(Span(rank=rank, kind="reduce", start_s=makespan_s, end_s=end_s))
    return Trace(
        step=plan.step,
        planner=plan.planner,
        world_size=plan.world_size,
        is_measured=False,
        spans=tuple(spans),
    )
