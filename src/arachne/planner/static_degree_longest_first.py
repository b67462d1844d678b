"""Baseline `static_degree_longest_first`: the best single degree, balanced, without barriers.

The strongest of the cheap planners, and the one that gains are to be stated against.
"""

from arachne.core.plan import Plan
from arachne.planner.each_degree import at_each_degree
from arachne.planner.fixed_degree import longest_first, on_least_loaded_block
from arachne.planner.problem import Placement, PlanningProblem
from arachne.planner.schedule import end_in_place_s, scheduled
from arachne.planner.stacking import stacked_cascades

NAME = "static_degree_longest_first"


def plan_static_degree_longest_first(problem: PlanningProblem) -> Plan:
    """The shortest of the plans that use one degree for all; ties to the smaller degree.

    Raises:
        InfeasibleError: Some cascade does not fit at each degree; says so for the largest one.
    """
    cascades = stacked_cascades(problem.batch, problem.stack_tokens)

    def made_at(degree: int) -> tuple[float, list[Placement]]:
        ordered = longest_first(problem, cascades, degree)
        placements, end_s = on_least_loaded_block(problem, ordered, degree, planner=NAME)
        if problem.next_batch is not None:
            end_s = end_in_place_s(problem, NAME, placements)
        return end_s, placements

    _, shortest = min(at_each_degree(problem.degrees, made_at), key=lambda made: made[0])
    return scheduled(problem, NAME, shortest)
