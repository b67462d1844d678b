"""What `arachne compare --epoch` adds: systems that train other clips in a step, over an epoch."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from arachne.core.errors import InfeasibleError
from arachne.planner.epochs.epoch import Epoch, EpochPlanner, EpochProblem, sampled_epoch
from arachne.planner.registry import EPOCH_PEERS, PLANNERS

if TYPE_CHECKING:
    from arachne.reporting.epoch_figures import EpochFigures
    from arachne.trainer.planning import PlanRequest

_SAMPLED = ("arachne", "static_degree_longest_first")
"""Planners of one step that stand beside the bucket systems, on the sampler's batches."""


def compared_epoch(requests: "Sequence[PlanRequest]") -> "tuple[EpochFigures, ...]":
    """Every system on the clips of `requests`, the sampler's steps; cheapest first."""
    from rich.console import Console
    from rich.progress import Progress

    problem = EpochProblem(
        sampled=tuple(request.problem for request in requests),
        step_end_s=requests[0].costs.step_overhead_s(),
    )
    planners: dict[str, EpochPlanner] = {name: _sampled(name) for name in _SAMPLED} | EPOCH_PEERS
    progress = Progress(
        console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    )
    with progress:
        rows = [
            _figures(name, planner, problem, requests[0])
            for name, planner in progress.track(planners.items(), description="epoch")
        ]
    cheapest_first = sorted(
        rows, key=lambda row: (row.gpu_seconds_per_token or float("inf"), row.name)
    )
    return tuple(cheapest_first)


def _sampled(name: str) -> EpochPlanner:
    return lambda problem: sampled_epoch(problem, name, PLANNERS[name])


def _figures(
    name: str, planner: EpochPlanner, problem: EpochProblem, request: "PlanRequest"
) -> "EpochFigures":
    from arachne.reporting.epoch_figures import EpochFigures

    try:
        epoch = planner(problem)
    except InfeasibleError as error:
        return EpochFigures(name=name, failure=str(error).removeprefix(f"planner {name!r}: "))
    num_dropped = len(problem.clips) - epoch.num_clips
    if not epoch.steps:
        return EpochFigures(name=name, clips_dropped=num_dropped)
    return replace(_simulated(epoch, request), clips_dropped=num_dropped)


def _simulated(epoch: Epoch, request: "PlanRequest") -> "EpochFigures":
    """Figures of an epoch that has steps; nothing is said of the clips that it drops."""
    from arachne.planner.memory_cap import num_cap_violations
    from arachne.reporting.epoch_figures import EpochFigures
    from arachne.simulator.simulate import simulate
    from arachne.trainer.planning import placed_plan

    traces = [
        simulate(placed_plan(step.plan, replace(request, batch=step.problem.batch)), request.costs)
        for step in epoch.steps
    ]
    seconds = sum(trace.iteration_s for trace in traces)
    idle_s = sum(trace.idle_ratio * trace.iteration_s for trace in traces)
    return EpochFigures(
        name=epoch.planner,
        gpu_seconds_per_token=request.costs.cluster.num_gpus * seconds / epoch.num_tokens,
        tokens=epoch.num_tokens,
        clips_trained=epoch.num_clips,
        steps=len(epoch.steps),
        idle_ratio=max(0.0, idle_s / seconds),
        cap_violations=sum(
            num_cap_violations(step.plan, step.problem, is_packed=False) for step in epoch.steps
        ),
    )
