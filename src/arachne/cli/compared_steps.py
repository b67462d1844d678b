"""Planners on the same steps: what each makes of them, and in figures."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean, mean, median
from typing import TYPE_CHECKING

from arachne.core.errors import InfeasibleError
from arachne.core.placed_plan import PlacedPlan
from arachne.core.trace import Trace
from arachne.planner.registry import compared_planner_named
from arachne.simulator.perturbation import UNDISTURBED, Perturbation

if TYPE_CHECKING:
    from arachne.reporting.planner_figures import PlannerFigures
    from arachne.trainer.planning import PlanRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedStep:
    """One step under one planner.

    Attributes:
        plan: As placed.
        trace: As simulated.
        plan_s: Seconds that planning and placing took on this machine.
        cap_violations: Launches, or packs, that need more memory than a GPU has.
    """

    plan: PlacedPlan
    trace: Trace
    plan_s: float
    cap_violations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One planner on all steps; without steps if it found no plan for one of them."""

    name: str
    steps: tuple[ComparedStep, ...] = ()
    failure: str = ""


def compared_steps(
    names: Sequence[str],
    requests: "Sequence[PlanRequest]",
    perturbation: Perturbation = UNDISTURBED,
) -> list[Compared]:
    """Every planner on every step; a step's plan is timed, placed and simulated."""
    from rich.console import Console
    from rich.progress import Progress

    found: list[Compared] = []
    progress = Progress(
        console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    )
    with progress:
        task = progress.add_task("planning", total=len(names) * len(requests))
        for name in names:
            steps: list[ComparedStep] = []
            try:
                for request in requests:
                    steps.append(_step(name, request, perturbation))
                    progress.advance(task)
                found.append(Compared(name=name, steps=tuple(steps)))
            except InfeasibleError as error:
                progress.advance(task, len(requests) - len(steps))
                failure = str(error).removeprefix(f"planner {name!r}: ")
                found.append(Compared(name=name, failure=failure))
    return found


def _step(name: str, request: "PlanRequest", perturbation: Perturbation) -> ComparedStep:
    from time import perf_counter

    from arachne.planner.memory_cap import num_cap_violations
    from arachne.planner.registry import PACKING_PEERS, PLANNERS
    from arachne.simulator.simulate import simulate
    from arachne.trainer.planning import placed_plan, plan_batch

    problem = request.problem
    started_s = perf_counter()
    if name in PLANNERS:  # as a run plans; these keep the cap
        placed, cap_violations = plan_batch(replace(request, planner=name)), 0
    else:
        plan = compared_planner_named(name)(problem)
        placed = placed_plan(plan, request)
        is_packed = name in PACKING_PEERS
        cap_violations = num_cap_violations(plan, problem, is_packed=is_packed)
    plan_s = perf_counter() - started_s
    return ComparedStep(
        plan=placed,
        trace=simulate(placed, request.costs, perturbation),
        plan_s=plan_s,
        cap_violations=cap_violations,
    )


def planner_figures(
    compared: Sequence[Compared], bounds_s: Sequence[float]
) -> "tuple[PlannerFigures, ...]":
    """Fastest first; planners without a plan last."""
    from arachne.reporting.comparison import REFERENCE
    from arachne.reporting.planner_figures import PlannerFigures

    rows: list[PlannerFigures] = []
    for row in compared:
        if row.failure:
            rows.append(PlannerFigures(name=row.name, failure=row.failure))
            continue
        over_bound = [
            step.trace.makespan_s / bound_s if bound_s else 1.0
            for step, bound_s in zip(row.steps, bounds_s, strict=True)
        ]
        phases = [launch.phase for step in row.steps for launch in step.plan.launches]
        rows.append(
            PlannerFigures(
                name=row.name,
                step_s=mean(step.trace.iteration_s for step in row.steps),
                bound_geomean=geometric_mean(over_bound),
                bound_worst=max(over_bound),
                idle_ratio=mean(step.trace.idle_ratio for step in row.steps),
                plan_s=median(step.plan_s for step in row.steps),
                cap_violations=sum(step.cap_violations for step in row.steps),
                num_phases=max(phases, default=0) + 1,
            )
        )
    reference_s = next((row.step_s for row in rows if row.name == REFERENCE), None)
    if reference_s:
        rows = [
            row if row.step_s is None else replace(row, ratio=row.step_s / reference_s)
            for row in rows
        ]
    return tuple(sorted(rows, key=lambda row: (row.step_s or float("inf"), row.name)))
