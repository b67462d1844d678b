"""Plans of other systems without their barriers: starts for ours where they keep its rules."""

from arachne.core.errors import InfeasibleError
from arachne.core.plan import Plan
from arachne.planner.fcp import plan_fcp
from arachne.planner.hotspa import plan_hotspa
from arachne.planner.megatron_dynamic_cp import plan_megatron_dynamic_cp
from arachne.planner.megatron_hybrid_cp import plan_megatron_hybrid_cp
from arachne.planner.problem import Planner, PlanningProblem
from arachne.planner.schedule import scheduled_as_given
from arachne.planner.search import ITERATIONS_OF_A_START

SYSTEMS: tuple[Planner, ...] = (
    plan_megatron_hybrid_cp,
    plan_megatron_dynamic_cp,
    plan_hotspa,
    plan_fcp,
)
"""Those that choose a degree for each clip, and take milliseconds."""

_MOST_CLIPS_TIMES_GPUS = 2048
"""Where a problem is larger, or a search short, these plans take too much of its time."""


def peer_plans(problem: PlanningProblem, planner: str) -> list[Plan]:
    """Their plans in the same order without barriers, if they stay on the blocks of ours.

    Each launch fits, as all of these see to. So no system of these has a shorter step, unless it
    uses groups of GPUs that we have not. None where asking takes too long.
    """
    size = len(problem.batch.clips) * problem.num_gpus
    if problem.iterations < ITERATIONS_OF_A_START or size > _MOST_CLIPS_TIMES_GPUS:
        return []
    of_degree = problem.allowed_blocks  # also those that we do not try
    plans: list[Plan] = []
    for system in SYSTEMS:
        try:
            launches = system(problem).launches
        except InfeasibleError:
            continue  # it knows no groups for these clips
        if all(launch.gpus in of_degree.get(launch.degree, ()) for launch in launches):
            placements = [(launch.cascade, launch.gpus) for launch in launches]
            plans.append(scheduled_as_given(problem, planner, placements))
    return plans
