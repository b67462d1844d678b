"""Baseline `static_dp_longest_first`: data parallelism, balanced (Graham's LPT rule, 1969)."""

from arachne.core.plan import Plan
from arachne.planner.fixed_degree import longest_first, on_least_loaded_block
from arachne.planner.problem import PlanningProblem
from arachne.planner.schedule import scheduled
from arachne.planner.stacking import stacked_cascades

NAME = "static_dp_longest_first"


def plan_static_dp_longest_first(problem: PlanningProblem) -> Plan:
    """Smallest degree; the longest cascade first, each to the GPU that is free first.

    Raises:
        InfeasibleError: A cascade does not fit on any GPU.
    """
    degree = problem.degrees[0]
    cascades = stacked_cascades(problem.batch, problem.stack_tokens)
    ordered = longest_first(problem, cascades, degree)
    placements, _ = on_least_loaded_block(problem, ordered, degree, planner=NAME)
    return scheduled(problem, NAME, placements)
