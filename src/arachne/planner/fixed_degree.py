"""What the static planners share: blocks of one degree, and the check that cascades fit."""

from collections.abc import Iterable
from heapq import heappop, heappush, heapreplace

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
    heap = [(0.0, index) for index in range(len(choices))]
    placements: list[Placement] = []
    for cascade in cascades:
        passed: list[tuple[float, int]] = []
        while heap and not problem.costs.fits(cascade, choices[heap[0][1]]):
            passed.append(heappop(heap))
        if not heap:
            raise does_not_fit(problem, cascade, choices[0], planner=planner)
        load_s, index = heap[0]
        gpus = choices[index]
        heapreplace(heap, (load_s + problem.duration_s(cascade, gpus), index))
        placements.append((cascade, gpus))
        for entry in passed:
            heappush(heap, entry)
    return placements
