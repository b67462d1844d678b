"""Runs a placed plan on modelled hardware, launch by launch as the executor does."""

from collections.abc import Sequence

from arachne.core.launch_inputs import input_launches
from arachne.core.placed_plan import PlacedPlan
from arachne.core.trace import Span, SpanKind, Trace
from arachne.simulator.iteration import Iteration
from arachne.simulator.launch_seconds import SimulatedCosts, modelled_seconds, planned_seconds
from arachne.simulator.perturbation import UNDISTURBED, Perturbation


def simulate(
    plan: PlacedPlan,
    costs: SimulatedCosts | None = None,
    perturbation: Perturbation = UNDISTURBED,
) -> Trace:
    """The trace of one iteration.

    A launch starts when all its ranks are free, the results of all its encoders have arrived, and
    all launches of lower phases have ended on every rank. An encoder's result is on its way from
    the encoder's end, whatever the receivers do; where a receiver has nothing else to do it is seen
    as `handoff`. A launch computes at the pace of its slowest rank; the others wait for it before
    they communicate. After its last launch a rank waits for all others, then all reduce, step the
    optimizer and gather.

    Where GPUs share NICs, launches that communicate between nodes at the same time share their
    bandwidth (`simulator/nics.py`). Simplified: a launch communicates all at once after it has
    computed, while real ones alternate layer by layer; all of its bytes count as leaving the node,
    also those of Ulysses groups inside one; handoffs, small beside them, have NICs of their own.

    Args:
        plan: What runs.
        costs: Durations on the plan's ranks, and the step's end. None takes the plan's own
            durations as computing, gaps before trained launches as handoffs, and ends with the last
            launch.
        perturbation: What disturbs.
    """
    inputs = input_launches([launch.cascade for launch in plan.launches])
    seconds = (
        planned_seconds(plan, inputs) if costs is None else modelled_seconds(plan, inputs, costs)
    )
    # Launches are disjoint: with a NIC for each GPU, nobody shares one.
    is_shared = costs is not None and costs.cluster.shares_nics
    cluster = costs.cluster if costs is not None and is_shared else None
    iteration = Iteration(plan, inputs, seconds, perturbation, cluster)
    iteration.run()
    spans = iteration.spans
    if costs is not None:
        spans += _step_end(iteration.free_s, costs, perturbation.bandwidth)
    return Trace(
        step=plan.step,
        planner=plan.planner,
        world_size=plan.world_size,
        is_measured=False,
        spans=tuple(sorted(spans, key=lambda span: (span.rank, span.start_s, span.end_s))),
    )


def _step_end(free_s: Sequence[float], costs: SimulatedCosts, bandwidth: float) -> list[Span]:
    """All wait for the last, then reduce, step the optimizer, and gather."""
    last_s = max(free_s, default=0.0)
    reduced_s = last_s + costs.gradient_reduce_s() / bandwidth
    updated_s = reduced_s + costs.optimizer_s()
    gathered_s = updated_s + costs.parameter_gather_s() / bandwidth
    spans: list[Span] = []
    for rank, rank_free_s in enumerate(free_s):
        parts: tuple[tuple[SpanKind, float, float], ...] = (
            ("wait", rank_free_s, last_s),
            ("reduce", last_s, reduced_s),
            ("optimizer", reduced_s, updated_s),
            ("reduce", updated_s, gathered_s),
        )
        for kind, start_s, end_s in parts:
            if end_s > start_s:
                spans.append(Span(rank=rank, kind=kind, start_s=start_s, end_s=end_s))
    return spans
