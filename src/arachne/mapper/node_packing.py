"""Which rank each GPU slot of a plan becomes, so that launches stay inside nodes."""

from collections import Counter
from collections.abc import Sequence, Set
from math import ceil

from arachne.core.blocks import Block
from arachne.core.cluster import Cluster
from arachne.core.plan import Launch, Plan
from arachne.mapper.placement_costs import PlacementCosts


def packed_ranks(
    plan: Plan,
    cluster: Cluster,
    costs: PlacementCosts | None = None,
    groups: Set[Block] | None = None,
) -> tuple[int, ...]:
    """Of each slot its rank; slots keep their numbers unless other ranks communicate less.

    A planner prices a launch on the ranks that have its slots' numbers. Slots only change places if
    no launch becomes slower by it: none leaves its node, shares fewer NICs, or splits more of its
    Ulysses groups over nodes, and all keep their GPUs' speeds. Less communication is fewer
    GPU-seconds by `costs`; without costs, fewer seconds of launches on more nodes than needed.
    Launches of several GPUs come on some of `groups` only, which can meet; None stands for all.
    """
    own = tuple(range(plan.num_gpus))
    if all(_num_spare_nodes(launch, launch.gpus, cluster) == 0 for launch in plan.launches):
        return own
    packed = _packed(plan, cluster)
    moved = [(launch, ranks_of(launch, packed)) for launch in plan.launches]
    if not all(_is_no_slower(launch, ranks, cluster) for launch, ranks in moved):
        return own
    if groups is not None and not all(len(r) == 1 or r in groups for _, r in moved):
        return own
    gain_s = sum(
        _communicate_s(launch, launch.gpus, cluster, costs)
        - _communicate_s(launch, ranks, cluster, costs)
        for launch, ranks in moved
    )
    return packed if gain_s > 0.0 else own


def scattered_ranks(cluster: Cluster) -> tuple[int, ...]:
    """Of each slot its rank if nodes are dealt out in turn, as a launcher that knows none would.

    Neighbouring slots are on different nodes, so that nearly all launches cross them.
    """
    return tuple(
        slot % cluster.num_nodes * cluster.gpus_per_node + slot // cluster.num_nodes
        for slot in range(cluster.num_gpus)
    )


def ranks_of(launch: Launch, rank_of_slot: Sequence[int]) -> tuple[int, ...]:
    """A launch's ranks, ascending."""
    return tuple(sorted(rank_of_slot[slot] for slot in launch.gpus))


def _packed(plan: Plan, cluster: Cluster) -> tuple[int, ...]:
    """Blocks from the largest: whole nodes first, the rest into the first node that has room."""
    size = cluster.gpus_per_node
    free = [list(range(node * size, (node + 1) * size)) for node in range(cluster.num_nodes)]
    rank_of_slot: dict[int, int] = {}
    blocks = {launch.gpus for launch in plan.launches}
    for block in sorted(blocks, key=lambda gpus: (-len(gpus), gpus)):
        if any(slot in rank_of_slot for slot in block):
            continue  # lies in a larger block that is placed already
        pieces = [block[first : first + size] for first in range(0, len(block), size)]
        for piece in pieces:
            for ranks in free:
                taken = _alike(piece, ranks, cluster)
                if taken is not None:
                    rank_of_slot |= zip(piece, taken, strict=True)
                    ranks[:] = [rank for rank in ranks if rank not in taken]
                    break
    left_slots = tuple(slot for slot in range(plan.num_gpus) if slot not in rank_of_slot)
    left_ranks = [rank for ranks in free for rank in ranks]
    taken = _alike(left_slots, left_ranks, cluster)
    assert taken is not None, "slots and ranks have the same speeds"
    rank_of_slot |= zip(left_slots, taken, strict=True)
    return tuple(rank_of_slot[slot] for slot in range(plan.num_gpus))


def _alike(
    slots: tuple[int, ...], free_ranks: Sequence[int], cluster: Cluster
) -> tuple[int, ...] | None:
    """For each slot a free rank of its speed, the first ones; None if there are too few."""
    by_speed: dict[float, list[int]] = {}
    for rank in reversed(free_ranks):
        by_speed.setdefault(cluster.speed_of(rank), []).append(rank)
    taken: list[int] = []
    for slot in slots:
        alike = by_speed.get(cluster.speed_of(slot))
        if not alike:
            return None
        taken.append(alike.pop())
    return tuple(taken)


def _is_no_slower(launch: Launch, ranks: tuple[int, ...], cluster: Cluster) -> bool:
    now, then = launch.gpus, ranks
    return _most_per_nic(then, cluster) <= _most_per_nic(now, cluster) and _num_split_groups(
        launch, then, cluster
    ) <= _num_split_groups(launch, now, cluster)


def _communicate_s(
    launch: Launch, ranks: tuple[int, ...], cluster: Cluster, costs: PlacementCosts | None
) -> float:
    if costs is None:
        return launch.duration_s * _num_spare_nodes(launch, ranks, cluster)
    return launch.degree * costs.communicate_s(launch.cascade, ranks)


def _num_spare_nodes(launch: Launch, ranks: tuple[int, ...], cluster: Cluster) -> int:
    """Nodes that a launch spans beyond the fewest possible."""
    return len(_members(ranks, cluster)) - ceil(launch.degree / cluster.gpus_per_node)


def _most_per_nic(ranks: tuple[int, ...], cluster: Cluster) -> float:
    """Ranks that share a NIC in the group's fullest node; 0 if nothing leaves the node."""
    members = _members(ranks, cluster)
    return 1.0 / cluster.nic_share(max(members.values())) if len(members) > 1 else 0.0


def _num_split_groups(launch: Launch, ranks: tuple[int, ...], cluster: Cluster) -> int:
    """Ulysses groups of a launch that have ranks in more than one node."""
    size = launch.mode.ulysses(launch.degree)
    firsts = range(0, launch.degree, size)
    return sum(len(_members(ranks[first : first + size], cluster)) > 1 for first in firsts)


def _members(ranks: tuple[int, ...], cluster: Cluster) -> Counter[int]:
    return Counter(cluster.node_of(rank) for rank in ranks)
