"""Baseline `static_degree_longest_first`: the best single degree, balanced, without barriers.

The strongest of the cheap planners, and the one that gains are to be stated against.
"""

from collections.abc import Sequence

from arachne.core.blocks import blocks
from arachne.core.cascade import Cascade
from arachne.core.errors import InfeasibleError
from arachne.core.plan import Plan
from arachne.planner.fixed_degree import on_least_loaded_block
from arachne.planner.problem import PlanningProblem
from arachne.planner.schedule import Placement, scheduled
from arachne.planner.stacking import stacked_cascades

NAME = "static_degree_longest_first"


def plan_static_degree_longest_first(problem: PlanningProblem) -> Plan:
    """The shortest of the plans that use one degree for all; ties to the smaller degree.

    Raises:
        InfeasibleError: Some cascade does not fit at each degree; says so for the largest one.
    """
    cascades = stacked_cascades(problem.batch, problem.stack_tokens)
    tried: list[list[Placement]] = []
    for degree in problem.degrees:
        try:
            tried.append(_placements_at(problem, cascades, degree))
        except InfeasibleError:
            if degree == problem.degrees[-1] and not tried:
                raise
    return scheduled(problem, NAME, min(tried, key=lambda made: _end_s(problem, made)))


def _placements_at(
    problem: PlanningProblem, cascades: Sequence[Cascade], degree: int
) -> list[Placement]:
    first_block = blocks(problem.num_gpus, degree)[0]
    longest_first = sorted(
        cascades, key=lambda cascade: (-problem.duration_s(cascade, first_block), cascade.slots)
    )
    return on_least_loaded_block(problem, longest_first, degree, planner=NAME)


def _end_s(problem: PlanningProblem, placements: Sequence[Placement]) -> float:
    """When the last of the blocks, which share no GPU, has run its cascades."""
    loads_s: dict[tuple[int, ...], float] = {}
    for cascade, gpus in placements:
        loads_s[gpus] = loads_s.get(gpus, 0.0) + problem.duration_s(cascade, gpus)
    return max(loads_s.values(), default=0.0)
