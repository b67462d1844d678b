"""Baseline `static_dp_longest_first`: data parallelism, balanced (Graham's LPT rule, 1969)."""

from arachne.core.blocks import blocks
from arachne.core.plan import Plan
from arachne.planner.fixed_degree import on_least_loaded_block
from arachne.planner.problem import PlanningProblem
from arachne.planner.schedule import scheduled
from arachne.planner.stacking import stacked_cascades

NAME = "static_dp_longest_first"


def plan_static_dp_longest_first(problem: PlanningProblem) -> Plan:
    """Smallest degree; the longest cascade first, each to the GPU that would end first.

    Raises:
        InfeasibleError: A cascade does not fit on any GPU.
    """
    degree = problem.degrees[0]
    first_block = blocks(problem.num_gpus, degree)[0]
    cascades = sorted(
        stacked_cascades(problem.batch, problem.stack_tokens),
        key=lambda cascade: (-problem.duration_s(cascade, first_block), cascade.slots),
    )
    return scheduled(problem, NAME, on_least_loaded_block(problem, cascades, degree, planner=NAME))
