"""Baseline `static_sp`: sequence parallelism as trainers do it; one degree for every cascade."""

from arachne.core.plan import Plan
from arachne.planner.fixed_degree import on_least_loaded_block
from arachne.planner.problem import PlanningProblem
from arachne.planner.schedule import scheduled
from arachne.planner.stacking import stacked_cascades

NAME = "static_sp"


def plan_static_sp(problem: PlanningProblem) -> Plan:
    """Largest allowed degree, in the sampler's order, each to the block that is free first.

    Raises:
        InfeasibleError: A cascade does not fit on any block.
    """
    cascades = stacked_cascades(problem.batch, problem.stack_tokens)
    degree = problem.degrees[-1]
    placements, _ = on_least_loaded_block(problem, cascades, degree, planner=NAME)
    return scheduled(problem, NAME, placements)
