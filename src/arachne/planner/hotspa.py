"""Peer `hotspa`: HotSPa's ranges of lengths, one parallel strategy for each, by its description.

Clips are cut by length into ranges; each range runs with one degree on all GPUs, the longest clips
first, each where it would end first; then the GPUs switch to the next range's degree. Ranges and
degrees are chosen together for the shortest step. Synchronization: a barrier between two ranges.
Ignored: switching costs nothing, and strategies other than degrees (tensor, pipeline) are left out.
"""

from collections.abc import Sequence
from math import inf

from arachne.core.cascade import Cascade
from arachne.core.plan import Plan
from arachne.planner.gpu_groups import Group, laid_out, longest_first
from arachne.planner.group_costs import GroupCosts
from arachne.planner.infeasible import does_not_fit
from arachne.planner.problem import PlanningProblem
from arachne.planner.schedule import scheduled_in_phases

NAME = "hotspa"

_MOST_LENGTHS = 12
"""Lengths at which ranges may end; neighbouring lengths share one if there are more."""


def plan_hotspa(problem: PlanningProblem) -> Plan:
    """The best cut into ranges, by dynamic programming over the lengths; ties to fewer ranges.

    Raises:
        InfeasibleError: A clip fits at no degree.
    """
    costs = GroupCosts(problem)
    lengths = _lengths(costs.cascades(problem.degrees, planner=NAME))
    best: list[tuple[float, int, list[list[Group]]]] = [(0.0, 0, [])]
    for end in range(1, len(lengths) + 1):
        found: tuple[float, int, list[list[Group]]] = (inf, 0, [])
        for first in range(end):
            cascades = [cascade for length in lengths[first:end] for cascade in length]
            range_s, groups = _at_best_degree(costs, cascades)
            before_s, num_ranges, before = best[first]
            if (before_s + range_s, num_ranges + 1) < found[:2]:
                found = (before_s + range_s, num_ranges + 1, [*before, groups])
        if (
            found[0] == inf
        ):  # one degree for all of them does not exist, however the lengths are cut
            widest = tuple(range(problem.degrees[-1]))
            raise does_not_fit(problem, lengths[end - 1][0], widest, planner=NAME)
        best.append(found)
    return scheduled_in_phases(problem, NAME, [laid_out(groups) for groups in best[-1][2]])


def _lengths(cascades: Sequence[Cascade]) -> list[list[Cascade]]:
    """Cascades of neighbouring lengths, the longest first, about as many in each."""
    ordered = sorted(cascades, key=lambda cascade: (-cascade.num_tokens, cascade.slots))
    num_lengths = len({cascade.num_tokens for cascade in cascades})
    least = len(cascades) / _MOST_LENGTHS if num_lengths > _MOST_LENGTHS else 1.0
    lengths: list[list[Cascade]] = []
    for index, cascade in enumerate(ordered):
        is_new = index == 0 or cascade.num_tokens != ordered[index - 1].num_tokens
        if not lengths or (is_new and len(lengths[-1]) >= least):
            lengths.append([])
        lengths[-1].append(cascade)
    return lengths


def _at_best_degree(costs: GroupCosts, cascades: list[Cascade]) -> tuple[float, list[Group]]:
    best_s, best = inf, list[Group]()
    for degree in costs.problem.degrees:
        if all(costs.fits(cascade, degree) for cascade in cascades):
            num_groups = costs.problem.num_gpus // degree
            groups = longest_first(costs, cascades, degree, num_groups)
            range_s = max(group.load for group in groups)
            if range_s < best_s:
                best_s, best = range_s, groups
    return best_s, best
