"""Start times for cascades that know their GPUs."""

from collections.abc import Iterable, Sequence

from arachne.core.cascade import Cascade
from arachne.core.plan import Launch, Plan
from arachne.planner.problem import PlanningProblem

Placement = tuple[Cascade, tuple[int, ...]]
"""A cascade and the GPUs that it runs on."""


def scheduled(problem: PlanningProblem, planner: str, placements: Iterable[Placement]) -> Plan:
    """Start each cascade, in the given order, as soon as all its GPUs are free."""
    return scheduled_in_phases(problem, planner, [placements])


def scheduled_in_phases(
    problem: PlanningProblem, planner: str, phases: Sequence[Iterable[Placement]]
) -> Plan:
    """Phase by phase, with a barrier over all GPUs between two; within one as `scheduled` does."""
    free_s = [0.0] * problem.num_gpus
    launches: list[Launch] = []
    for phase, placements in enumerate(phases):
        barrier_s = max(free_s)
        free_s = [barrier_s] * problem.num_gpus
        for cascade, gpus in placements:
            launch = Launch(
                cascade=cascade,
                gpus=gpus,
                start_s=max(free_s[gpu] for gpu in gpus),
                duration_s=problem.duration_s(cascade, gpus),
                phase=phase,
                mode=problem.costs.mode(cascade, gpus),
            )
            for gpu in gpus:
                free_s[gpu] = launch.end_s
            launches.append(launch)
    launches.sort(key=lambda launch: (launch.start_s, launch.gpus))
    return Plan(planner=planner, num_gpus=problem.num_gpus, launches=tuple(launches))
