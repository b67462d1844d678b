"""Puts a plan's GPU slots on the ranks of a cluster, so that blocks stay inside nodes.

Slots and ranks are numbered alike, and a planner prices a block by the links between the ranks of
the same numbers. A permutation is only used if no launch spans more nodes than under the identity:
then no duration of the plan becomes too short.
"""

from collections.abc import Callable, Sequence
from math import ceil

from arachne.core.cascade import Cascade
from arachne.core.cluster import Cluster
from arachne.core.errors import InfeasibleError
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from arachne.core.plan import Launch, Plan


def place(plan: Plan, cluster: Cluster, step: int) -> PlacedPlan:
    """The plan on ranks, with its starts and durations; launches in order of (start, ranks).

    Raises:
        InfeasibleError: The plan is for another number of GPUs than the cluster has.
    """
    if plan.num_gpus != cluster.num_gpus:
        raise InfeasibleError(
            f"the plan by {plan.planner!r} is for {plan.num_gpus} GPUs but cluster "
            f"{cluster.name!r} has {cluster.num_gpus}; plan for this cluster"
        )
    rank_of_slot = _rank_of_slot(plan, cluster)
    launches = [
        PlacedLaunch(
            cascade=launch.cascade,
            ranks=_ranks(launch, rank_of_slot),
            start_s=launch.start_s,
            duration_s=launch.duration_s,
            phase=launch.phase,
            mode=launch.mode,
        )
        for launch in plan.launches
    ]
    launches.sort(key=lambda launch: (launch.start_s, launch.ranks))
    return PlacedPlan(
        step=step, planner=plan.planner, world_size=plan.num_gpus, launches=tuple(launches)
    )


def communication_score_s(
    plan: PlacedPlan, communicate_s: Callable[[Cascade, tuple[int, ...]], float]
) -> float:
    """GPU-seconds that a placement spends in communication; lower is better.

    `communicate_s` prices one cascade on its ranks, as `CostModel.communicate_s` does.
    """
    return sum(
        launch.degree * communicate_s(launch.cascade, launch.ranks) for launch in plan.launches
    )


def _rank_of_slot(plan: Plan, cluster: Cluster) -> Sequence[int]:
    identity = tuple(range(plan.num_gpus))
    if _crossing_s(plan, cluster, identity) == 0.0:
        return identity
    packed = _packed(plan, cluster)
    is_alike = all(
        _num_nodes(cluster, _ranks(launch, packed)) <= _num_nodes(cluster, launch.gpus)
        for launch in plan.launches
    )
    is_better = _crossing_s(plan, cluster, packed) < _crossing_s(plan, cluster, identity)
    return packed if is_alike and is_better else identity


def _packed(plan: Plan, cluster: Cluster) -> Sequence[int]:
    """Blocks that fit into a node, largest first, each to the first node with room for it."""
    free = [
        list(range(node * cluster.gpus_per_node, (node + 1) * cluster.gpus_per_node))
        for node in range(cluster.num_nodes)
    ]
    rank_of_slot: dict[int, int] = {}
    blocks = {launch.gpus for launch in plan.launches if launch.degree <= cluster.gpus_per_node}
    for block in sorted(blocks, key=lambda gpus: (-len(gpus), gpus)):
        if any(slot in rank_of_slot for slot in block):
            continue  # lies in a larger block that is placed already
        room = next((ranks for ranks in free if len(ranks) >= len(block)), None)
        if room is not None:
            for slot in block:
                rank_of_slot[slot] = room.pop(0)
    left_over = iter([rank for ranks in free for rank in ranks])
    return [
        rank_of_slot[slot] if slot in rank_of_slot else next(left_over)
        for slot in range(plan.num_gpus)
    ]


def _crossing_s(plan: Plan, cluster: Cluster, rank_of_slot: Sequence[int]) -> float:
    """Seconds of launches times the nodes that each spans beyond the fewest possible."""
    return sum(
        launch.duration_s
        * (
            _num_nodes(cluster, _ranks(launch, rank_of_slot))
            - ceil(launch.degree / cluster.gpus_per_node)
        )
        for launch in plan.launches
    )


def _num_nodes(cluster: Cluster, ranks: Sequence[int]) -> int:
    return len({cluster.node_of(rank) for rank in ranks})


def _ranks(launch: Launch, rank_of_slot: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(rank_of_slot[slot] for slot in launch.gpus))
