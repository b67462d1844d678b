"""Groups of GPUs side by side, as peers form them for one micro-batch."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heapreplace

from arachne.core.cascade import Cascade
from arachne.planner.group_costs import GroupCosts
from arachne.planner.problem import Placement


@dataclass(slots=True, kw_only=True)
class Group:
    """Some GPUs with the cascades that they run one after another; changed while it is formed.

    Attributes:
        degree: How many GPUs.
        cascades: What they run, in order.
        load: Sum of its cascades' costs, in the unit of whoever forms the group.
    """

    degree: int
    cascades: list[Cascade] = field(default_factory=list[Cascade])
    load: float = 0.0


def laid_out(groups: Iterable[Group]) -> list[Placement]:
    """Neighbouring GPUs for each group, the largest first: powers of two then lie on blocks."""
    placements: list[Placement] = []
    first = 0
    for group in sorted(groups, key=lambda group: -group.degree):
        gpus = tuple(range(first, first + group.degree))
        placements += [(cascade, gpus) for cascade in group.cascades]
        first += group.degree
    return placements


def longest_first(
    costs: GroupCosts, cascades: Iterable[Cascade], degree: int, num_groups: int
) -> list[Group]:
    """Cascades on groups of one degree, the longest first, each where it would end first."""
    groups = [Group(degree=degree) for _ in range(num_groups)]
    heap = [(0.0, index) for index in range(num_groups)]
    heapify(heap)
    for cascade in sorted(cascades, key=lambda c: (-costs.duration_s(c, degree), c.slots)):
        load_s, index = heap[0]
        load_s += costs.duration_s(cascade, degree)
        groups[index].cascades.append(cascade)
        groups[index].load = load_s
        heapreplace(heap, (load_s, index))
    return groups
