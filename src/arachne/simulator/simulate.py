"""Runs a placed plan on modelled hardware, launch by launch as the executor does."""

from typing import Protocol

from arachne.core.cascade import Cascade
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from arachne.core.trace import Span, SpanKind, Trace
from arachne.simulator.perturbation import UNDISTURBED, Perturbation


class SimulatedCosts(Protocol):
    """What the simulated hardware takes; `cost.CostModel` is one."""

    def launch_s(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        """Seconds of a launch."""
        ...

    def communicate_s(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        """The part of them spent in collectives."""
        ...

    def gradient_reduce_s(self) -> float:
        """Seconds of the reduce-scatter that ends a step's launches."""
        ...

    def optimizer_s(self) -> float:
        """Seconds of the optimizer."""
        ...

    def parameter_gather_s(self) -> float:
        """Seconds of the all-gather after it."""
        ...


def simulate(
    plan: PlacedPlan,
    costs: SimulatedCosts | None = None,
    perturbation: Perturbation = UNDISTURBED,
) -> Trace:
    """The trace of one iteration.

    A launch starts when all its ranks are free, and all launches of lower phases have ended on
    every rank; until then its ranks wait. It computes at the pace of its slowest rank; the others
    wait for it before they communicate. After its last launch a rank waits for all others, then
    all reduce, step the optimizer and gather.

    Args:
        plan: What runs.
        costs: Durations on the plan's ranks, and the step's end. None takes the plan's own
            durations as computing and ends with the last launch.
        perturbation: Noise and slow ranks.
    """
    spans: list[Span] = []
    free_s = [0.0] * plan.world_size
    phase, barrier_s = 0, 0.0
    for index, launch in enumerate(plan.launches):
        if launch.phase > phase:
            phase, barrier_s = launch.phase, max(free_s)
        start_s = max(barrier_s, *(free_s[rank] for rank in launch.ranks))
        _run_launch(plan.step, index, start_s, launch, costs, perturbation, free_s, spans)
    if costs is not None:
        end_s = max(free_s, default=0.0)
        for rank in range(plan.world_size):
            _finish_step(rank, free_s[rank], end_s, costs, spans)
    spans = [span for span in spans if span.end_s > span.start_s]
    return Trace(
        step=plan.step,
        planner=plan.planner,
        world_size=plan.world_size,
        is_measured=False,
        spans=tuple(sorted(spans, key=lambda span: (span.rank, span.start_s, span.end_s))),
    )


def _run_launch(
    step: int,
    index: int,
    start_s: float,
    launch: PlacedLaunch,
    costs: SimulatedCosts | None,
    perturbation: Perturbation,
    free_s: list[float],
    spans: list[Span],
) -> None:
    factor = perturbation.launch_factor(step, launch)
    if costs is None:
        total_s, communicate_s = launch.duration_s, 0.0
    else:
        total_s = costs.launch_s(launch.cascade, launch.ranks)
        communicate_s = costs.communicate_s(launch.cascade, launch.ranks)
    compute_s = total_s - communicate_s
    slowest = max(perturbation.rank_factor(rank) for rank in launch.ranks)
    # One sum for the end, so that an undisturbed launch ends exactly where the plan says.
    extra_s = compute_s * (slowest - 1.0)
    end_s = start_s + (total_s + extra_s) * factor
    meet_s = min(start_s + compute_s * slowest * factor, end_s) if communicate_s else end_s
    for rank in launch.ranks:
        share = perturbation.rank_factor(rank) / slowest
        computed_s = meet_s if share == 1.0 else start_s + (meet_s - start_s) * share
        spans += [
            Span(rank=rank, kind="wait", start_s=free_s[rank], end_s=start_s, launch=index),
            Span(rank=rank, kind="compute", start_s=start_s, end_s=computed_s, launch=index),
            Span(rank=rank, kind="wait", start_s=computed_s, end_s=meet_s, launch=index),
            Span(rank=rank, kind="communicate", start_s=meet_s, end_s=end_s, launch=index),
        ]
        free_s[rank] = end_s


def _finish_step(
    rank: int, free_s: float, end_s: float, costs: SimulatedCosts, spans: list[Span]
) -> None:
    spans.append(Span(rank=rank, kind="wait", start_s=free_s, end_s=end_s))
    now_s = end_s
    parts: tuple[tuple[SpanKind, float], ...] = (
        ("reduce", costs.gradient_reduce_s()),
        ("optimizer", costs.optimizer_s()),
        ("reduce", costs.parameter_gather_s()),
    )
    for kind, seconds in parts:
        spans.append(Span(rank=rank, kind=kind, start_s=now_s, end_s=now_s + seconds))
        now_s += seconds
