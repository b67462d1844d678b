"""Peer `lb_mini`: ODC's LB-Mini, samples balanced over ranks by Karmarkar and Karp's differencing.

No sequence parallelism: every cascade runs on one GPU (or on the smallest allowed degree). Ranks
have different numbers of micro-batches. Synchronization: none before the step's end, since
parameters are fetched on demand. Ignored: what that fetching costs.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from arachne.core.blocks import blocks
from arachne.core.plan import Plan
from arachne.planner.group_costs import GroupCosts
from arachne.planner.problem import Placement, PlanningProblem
from arachne.planner.schedule import scheduled

NAME = "lb_mini"

_Part = tuple[float, tuple[int, ...]]
"""A sum, and the items in it."""


def plan_lb_mini(problem: PlanningProblem) -> Plan:
    """Cascades on single GPUs with sums as equal as differencing makes them.

    Raises:
        InfeasibleError: A clip does not fit on one GPU.
    """
    degree = problem.degrees[0]
    costs = GroupCosts(problem)
    cascades = costs.cascades((degree,), planner=NAME)
    choices = blocks(problem.num_gpus, degree)
    durations_s = [costs.duration_s(cascade, degree) for cascade in cascades]
    placements: list[Placement] = []
    for gpus, items in zip(choices, karmarkar_karp(durations_s, len(choices)), strict=True):
        placements += [(cascades[item], gpus) for item in items]
    return scheduled(problem, NAME, placements)


def karmarkar_karp(weights: Sequence[float], num_parts: int) -> list[tuple[int, ...]]:
    """Indices of the weights in `num_parts` parts, the largest sum first, empty parts last.

    Starts with one partition for each weight and joins the two whose sums differ most, large parts
    with small ones, until one is left. Source: Karmarkar and Karp (1982), the largest differencing
    method for several parts. O(n·k·log k).
    """
    heap: list[tuple[float, int, list[_Part]]] = [
        (-weight, i, [(weight, (i,))]) for i, weight in enumerate(weights)
    ]
    heapify(heap)
    while len(heap) > 1:
        _, order, large = heappop(heap)
        _, _, small = heappop(heap)
        joined = _joined(large, small, num_parts)
        least = joined[-1][0] if len(joined) == num_parts else 0.0
        heappush(heap, (least - joined[0][0], order, joined))
    parts = [tuple(sorted(items)) for _, items in heap[0][2]] if heap else []
    return parts + [()] * (num_parts - len(parts))


def _joined(large: list[_Part], small: list[_Part], num_parts: int) -> list[_Part]:
    """Parts of two partitions, the i-th largest of one with the i-th smallest of the other.

    Both are lists without their empty parts, the largest sum first.
    """
    parts = large[: num_parts - len(small)] + small[: num_parts - len(large)]
    for i in range(num_parts - len(small), len(large)):
        weight, items = small[num_parts - 1 - i]
        parts.append((large[i][0] + weight, large[i][1] + items))
    return sorted(parts, key=lambda part: (-part[0], part[1]))
