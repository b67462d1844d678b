"""Baseline `static_degree_longest_first`: the best single degree, balanced, without barriers.

The strongest of the cheap planners, and the one that gains are to be stated against.
"""

from arachne.core.blocks import blocks
from arachne.core.errors import InfeasibleError
from arachne.core.plan import Plan
from arachne.planner.fixed_degree import on_least_loaded_block
from arachne.planner.problem import PlanningProblem
from arachne.planner.schedule import scheduled
from arachne.planner.stacking import stacked_cascades

NAME = "static_degree_longest_first"


def plan_static_degree_longest_first(problem: PlanningProblem) -> Plan:
    """The shortest of the plans that use one degree for all; ties to the smaller degree.

    Raises:
        InfeasibleError: Some cascade does not fit at each degree; says so for the largest one.
    """
    plans: list[Plan] = []
    for degree in problem.degrees:
        try:
            plans.append(_plan_at(problem, degree))
        except InfeasibleError:
            if degree == problem.degrees[-1] and not plans:
                raise
    return min(plans, key=lambda plan: plan.makespan_s)


def _plan_at(problem: PlanningProblem, degree: int) -> Plan:
    first_block = blocks(problem.num_gpus, degree)[0]
    cascades = sorted(
        stacked_cascades(problem.batch, problem.stack_tokens),
        key=lambda cascade: (-problem.duration_s(cascade, first_block), cascade.slots),
    )
    return scheduled(problem, NAME, on_least_loaded_block(problem, cascades, degree, planner=NAME))
