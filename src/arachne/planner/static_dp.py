"""Baseline `static_dp`: data parallelism as trainers do it; cascades dealt to GPUs in turn."""

from arachne.core.blocks import blocks
from arachne.core.plan import Plan
from arachne.planner.infeasible import does_not_fit
from arachne.planner.problem import Placement, PlanningProblem
from arachne.planner.schedule import scheduled
from arachne.planner.stacking import stacked_cascades

NAME = "static_dp"


def plan_static_dp(problem: PlanningProblem) -> Plan:
    """Smallest degree, dealt round-robin in the sampler's order.

    Raises:
        InfeasibleError: A cascade does not fit on the block whose turn it is.
    """
    choices = blocks(problem.num_gpus, problem.degrees[0])
    placements: list[Placement] = []
    cascades = stacked_cascades(problem.batch, problem.stack_tokens)
    for turn, cascade in enumerate(cascades):
        gpus = choices[turn % len(choices)]
        if not problem.costs.fits(cascade, gpus):
            raise does_not_fit(problem, cascade, gpus, planner=NAME)
        placements.append((cascade, gpus))
    return scheduled(problem, NAME, placements)
