"""What the static planners share: blocks of one degree, and the check that cascades fit."""

from collections.abc import Iterable

from arachne.core.blocks import blocks
from arachne.core.cascade import Cascade
from arachne.planner.infeasible import does_not_fit
from arachne.planner.problem import PlanningProblem
from arachne.planner.schedule import Placement


def on_least_loaded_block(
    problem: PlanningProblem, cascades: Iterable[Cascade], degree: int, *, planner: str
) -> list[Placement]:
    """Give each cascade, in order, to the block that would end first; ties to the first block.

    Raises:
        InfeasibleError: A cascade does not fit on any block.
    """
    choices = blocks(problem.num_gpus, degree)
    loads_s = [0.0] * len(choices)
    placements: list[Placement] = []
    for cascade in cascades:
        fitting = [i for i, gpus in enumerate(choices) if problem.costs.fits(cascade, gpus)]
        if not fitting:
            raise does_not_fit(problem, cascade, choices[0], planner=planner)
        chosen = min(fitting, key=lambda i: (loads_s[i], i))
        loads_s[chosen] += problem.duration_s(cascade, choices[chosen])
        placements.append((cascade, choices[chosen]))
    return placements
