"""Peer `fcp`: context parallelism of any degree, in polynomial time (arXiv 2602.21788).

What is known of it is that degrees need not be powers of two and that planning takes milliseconds;
the rest is written for it here. Clips are sorted by length and cut into micro-batches of even work,
for several counts. In each, cascades go, the most work first, to the emptiest of G groups; every
group starts with the fewest GPUs that hold its cascades, then the longest one takes GPUs until none
are left or none helps; several G are tried. Synchronization: a barrier after each micro-batch.
Groups need not lie on blocks, so our runtime could not run these plans. Ignored: packing; a group's
cascades run in turn, and each must fit alone, which favours this peer.
"""

from collections.abc import Sequence
from heapq import heapify, heapreplace
from math import inf

from arachne.core.cascade import Cascade
from arachne.core.plan import Plan
from arachne.planner.chunks import even_chunks
from arachne.planner.gpu_groups import Group, laid_out
from arachne.planner.group_costs import GroupCosts
from arachne.planner.problem import PlanningProblem
from arachne.planner.schedule import scheduled_in_phases

NAME = "fcp"

_MOST_MICRO_BATCHES = 8
_GROUP_GROWTH = 1.25
"""Ratio of the numbers of groups that are tried one after another."""


def plan_fcp(problem: PlanningProblem) -> Plan:
    """The best plan over the numbers of micro-batches; ties to fewer.

    Raises:
        InfeasibleError: A clip does not fit on the largest allowed degree.
    """
    costs = GroupCosts(problem)
    degrees = tuple(range(1, problem.degrees[-1] + 1))
    cascades = costs.cascades(degrees, planner=NAME)
    ordered = sorted(cascades, key=lambda c: (-c.num_tokens, c.slots))
    works = [_work_s(costs, cascade, degrees) for cascade in ordered]
    work_of = dict(zip(ordered, works, strict=True))
    best_s, best = inf, list[list[Group]]()
    counts = range(1, min(_MOST_MICRO_BATCHES, len(ordered)) + 1)
    cuts = [even_chunks(ordered, works, count) for count in counts]
    cuts.append([[cascade] for cascade in ordered])  # the last resort: one at a time
    for chunks in cuts:
        micro_batches = [
            _micro_batch(costs, sorted(chunk, key=lambda c: (-work_of[c], c.slots)), work_of)
            for chunk in chunks
        ]
        total_s = sum(max((g.load for g in groups), default=inf) for groups in micro_batches)
        if total_s < best_s:
            best_s, best = total_s, micro_batches
    return scheduled_in_phases(problem, NAME, [laid_out(groups) for groups in best])


def _work_s(costs: GroupCosts, cascade: Cascade, degrees: Sequence[int]) -> float:
    """GPU-seconds on the fewest GPUs that hold the cascade."""
    least = next(degree for degree in degrees if costs.fits(cascade, degree))
    return least * costs.duration_s(cascade, least)


def _micro_batch(
    costs: GroupCosts, cascades: Sequence[Cascade], work_of: dict[Cascade, float]
) -> list[Group]:
    best_s, best = inf, list[Group]()
    num_groups = 1
    while num_groups <= min(costs.problem.num_gpus, len(cascades)):
        groups = _grown(costs, _dealt(cascades, work_of, num_groups))
        longest_s = max((group.load for group in groups), default=inf)  # inf: too many for the GPUs
        if longest_s < best_s:
            best_s, best = longest_s, groups
        num_groups = max(num_groups + 1, int(num_groups * _GROUP_GROWTH))
    return best


def _dealt(
    cascades: Sequence[Cascade], work_of: dict[Cascade, float], num_groups: int
) -> list[list[Cascade]]:
    heap = [(0.0, index) for index in range(num_groups)]
    dealt: list[list[Cascade]] = [[] for _ in range(num_groups)]
    for cascade in cascades:
        work_s, index = heap[0]
        dealt[index].append(cascade)
        heapreplace(heap, (work_s + work_of[cascade], index))
    return dealt


def _grown(costs: GroupCosts, dealt: Sequence[list[Cascade]]) -> list[Group]:
    """Degrees for the groups; empty if they do not fit on the GPUs together."""
    largest = costs.problem.degrees[-1]
    groups: list[Group] = []
    for cascades in dealt:
        degree = next((d for d in range(1, largest + 1) if _load_s(costs, cascades, d) < inf), None)
        if degree is None:
            return []
        load_s = _load_s(costs, cascades, degree)
        groups.append(Group(degree=degree, cascades=cascades, load=load_s))
    num_free = costs.problem.num_gpus - sum(group.degree for group in groups)
    if num_free < 0:
        return []
    heap = [(-group.load, index) for index, group in enumerate(groups)]
    heapify(heap)
    while True:
        group = groups[heap[0][1]]
        wider = range(group.degree + 1, min(largest, group.degree + num_free) + 1)
        better = (d for d in wider if _load_s(costs, group.cascades, d) < group.load)
        degree = next(better, None)
        if degree is None:
            return groups
        num_free -= degree - group.degree
        group.degree, group.load = degree, _load_s(costs, group.cascades, degree)
        heapreplace(heap, (-group.load, heap[0][1]))


def _load_s(costs: GroupCosts, cascades: Sequence[Cascade], degree: int) -> float:
    return sum(costs.duration_s(cascade, degree) for cascade in cascades)
