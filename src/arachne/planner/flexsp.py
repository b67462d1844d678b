"""Peer `flexsp`: FlexSP's flexible sequence parallelism, by its description.

Clips are sorted by length and cut into M micro-batches of even size, for several M. In each, one
integer programme forms groups of GPUs (powers of two) and deals the clips, in at most 16 kinds, so
that the longest group is as short as can be. Synchronization: a barrier after each micro-batch,
because ZeRO-3 keeps all GPUs in step; what counts is the sum of the longest groups. A group runs
its clips as one pack, so all of them are in memory at once and must keep the cap together.

Solver: HiGHS through `scipy.optimize.milp`, on one core, at most `SOLVER_LIMIT_S` a plan, shared
out evenly over its programmes, and 1 % gap. Plans therefore depend on the machine's speed. Where
one degree for the whole micro-batch is better, or the solver found nothing in time, that is taken.
Ignored: that a pack pays its fixed launch cost once.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf

from arachne.core.cascade import Cascade
from arachne.core.plan import Plan
from arachne.planner.chunks import even_chunks
from arachne.planner.flexsp_milp import Kind, fewest_seconds
from arachne.planner.gpu_groups import Group, laid_out, longest_first
from arachne.planner.group_costs import GroupCosts, powers_of_two
from arachne.planner.problem import PlanningProblem
from arachne.planner.schedule import scheduled_in_phases

NAME = "flexsp"

SOLVER_LIMIT_S = 5.0
"""Seconds of HiGHS for one plan."""

_TRIED_COUNTS = 4
"""Numbers of micro-batches that are tried, from the fewest that memory allows."""

_MOST_KINDS = 16


@dataclass(frozen=True, slots=True)
class _Cluster:
    """What the programmes of one plan share."""

    costs: GroupCosts
    degrees: tuple[int, ...]

    @property
    def num_gpus(self) -> int:
        return self.costs.problem.num_gpus

    def pack_share(self, cascade: Cascade, degree: int) -> float:
        """At most 1 where the cascade fits alone, whatever rounding says."""
        if not self.costs.fits(cascade, degree):
            return inf
        return min(max(self.costs.pack_share(cascade, degree), 1e-6), 1.0)


def plan_flexsp(problem: PlanningProblem) -> Plan:
    """The best plan over several numbers of micro-batches; ties to fewer.

    Raises:
        InfeasibleError: A clip fits on no degree that is a power of two.
    """
    costs = GroupCosts(problem)
    degrees = powers_of_two(problem.degrees)
    cascades = costs.cascades(degrees, planner=NAME)
    cluster = _Cluster(costs, degrees)
    ordered = sorted(cascades, key=lambda c: (-c.num_tokens, c.slots))
    best_s, best = inf, list[list[Group]]()
    count, num_tried = _fewest_micro_batches(cluster, ordered), 0
    while num_tried < _TRIED_COUNTS and count <= len(ordered):
        micro_batches = _micro_batches(cluster, ordered, count)
        if micro_batches is None:
            count = ceil(1.2 * count) if count > 5 else count + 1
            continue
        total_s = sum(max(group.load for group in groups) for groups in micro_batches)
        if total_s < best_s:
            best_s, best = total_s, micro_batches
        num_tried += 1
        count += 1
    if ordered and not best:  # the jumps above passed the last resort: one cascade at a time
        best = _micro_batches(cluster, ordered, len(ordered)) or []
    return scheduled_in_phases(problem, NAME, [laid_out(groups) for groups in best])


def _fewest_micro_batches(cluster: _Cluster, cascades: Sequence[Cascade]) -> int:
    """Fewer cannot hold all packs."""
    needed = sum(min(d * cluster.pack_share(c, d) for d in cluster.degrees) for c in cascades)
    return max(1, ceil(needed / cluster.num_gpus - 1e-9))


def _micro_batches(
    cluster: _Cluster, cascades: Sequence[Cascade], count: int
) -> list[list[Group]] | None:
    """The groups of each micro-batch; None if one of them holds more than memory allows."""
    weights = [float(cascade.num_tokens * cascade.num_clips) for cascade in cascades]
    limit_s = SOLVER_LIMIT_S / (_TRIED_COUNTS * count)
    found: list[list[Group]] = []
    for chunk in even_chunks(cascades, weights, count):
        choices = [_with_one_degree(cluster, chunk), _with_solver(cluster, chunk, limit_s)]
        groups = min(
            (groups for groups in choices if groups),
            key=lambda groups: max(group.load for group in groups),
            default=None,
        )
        if groups is None:
            return None
        found.append(groups)
    return found


def _with_one_degree(cluster: _Cluster, chunk: Sequence[Cascade]) -> list[Group]:
    best_s, best = inf, list[Group]()
    for degree in cluster.degrees:
        groups = longest_first(cluster.costs, chunk, degree, cluster.num_gpus // degree)
        longest_s = max(group.load for group in groups)
        if longest_s < best_s and all(_is_within_cap(cluster, group) for group in groups):
            best_s, best = longest_s, groups
    return best


def _is_within_cap(cluster: _Cluster, group: Group) -> bool:
    return sum(cluster.pack_share(c, group.degree) for c in group.cascades) <= 1.0 + 1e-9


def _with_solver(cluster: _Cluster, chunk: Sequence[Cascade], limit_s: float) -> list[Group]:
    kinds = _kinds(chunk)
    dealt = fewest_seconds(
        [
            Kind(
                count=len(members),
                seconds=[max(cluster.costs.duration_s(c, d) for c in members) for d in degrees],
                shares=[max(cluster.pack_share(c, d) for c in members) for d in degrees],
            )
            for degrees in [cluster.degrees]
            for members in kinds
        ],
        cluster.degrees,
        cluster.num_gpus,
        limit_s=limit_s,
    )
    waiting = [iter(members) for members in kinds]
    groups: list[Group] = []
    for degree, counts in dealt:
        group = Group(degree=degree)
        for members, number in zip(waiting, counts, strict=True):
            group.cascades += [next(members) for _ in range(number)]
        group.load = sum(cluster.costs.duration_s(c, degree) for c in group.cascades)
        groups.append(group)
    return groups


def _kinds(chunk: Sequence[Cascade]) -> list[list[Cascade]]:
    """Cascades alike in cost; neighbours in length share a kind if there are more than 16."""
    alike: dict[tuple[int, int], list[Cascade]] = defaultdict(list)
    for cascade in chunk:
        alike[cascade.num_tokens, cascade.num_clips].append(cascade)
    ordered = [alike[key] for key in sorted(alike, reverse=True)]
    merged: list[list[Cascade]] = []
    for i in range(0, len(ordered), ceil(len(ordered) / _MOST_KINDS)):
        parts = ordered[i : i + ceil(len(ordered) / _MOST_KINDS)]
        merged.append([cascade for part in parts for cascade in part])
    return merged
