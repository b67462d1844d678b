"""Puts a plan's GPU slots on the ranks of a cluster: launches in one node, inputs at hand.

Slots and ranks are numbered alike, and a planner prices a launch on the ranks with its slots'
numbers. What is changed here never makes a launch slower than that.
"""

from collections.abc import Set

from arachne.core.blocks import Block
from arachne.core.cluster import Cluster
from arachne.core.errors import InfeasibleError
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from arachne.core.plan import Plan
from arachne.mapper.cascade_trades import near_inputs
from arachne.mapper.encoders_apart import encoders_apart
from arachne.mapper.idle_ranks import on_idle_ranks
from arachne.mapper.node_packing import packed_ranks, ranks_of, scattered_ranks
from arachne.mapper.placement_costs import PlacementCosts
from arachne.mapper.retiming import in_order, retimed


def place(
    plan: Plan,
    cluster: Cluster,
    step: int,
    *,
    intra_cascade: bool = True,
    inter_cascade: bool = True,
    costs: PlacementCosts | None = None,
    groups: Set[Block] | None = None,
) -> PlacedPlan:
    """The plan on ranks, its launches in order of (start, ranks), and never longer than planned.

    Args:
        plan: Launches on GPU slots.
        cluster: Where the ranks are.
        step: The iteration.
        intra_cascade: Keep launches inside nodes (`mapper/node_packing.py`). Without it, slots are
            dealt to nodes in turn, and the plan may take longer.
        inter_cascade: Keep encoders where their results are needed (`mapper/cascade_trades.py`,
            `mapper/idle_ranks.py`); needs `costs`. Without it, encoders run in another node
            (`mapper/encoders_apart.py`), and the plan may take longer.
        costs: Prices launches and handoffs on ranks. None leaves all times as planned, and encoders
            where they are.
        groups: Ranks that a launch of several may have, as a runtime creates their groups ahead;
            None stands for all.

    Raises:
        InfeasibleError: The plan is for another number of GPUs than the cluster has.
    """
    if plan.num_gpus != cluster.num_gpus:
        raise InfeasibleError(
            f"the plan by {plan.planner!r} is for {plan.num_gpus} GPUs but cluster "
            f"{cluster.name!r} has {cluster.num_gpus}; plan for this cluster"
        )
    assert costs is not None or (intra_cascade and inter_cascade), "what gets longer needs a price"
    rank_of_slot = (
        packed_ranks(plan, cluster, costs, groups) if intra_cascade else scattered_ranks(cluster)
    )
    if not inter_cascade:
        plan = encoders_apart(plan, cluster)
    placed = _on_ranks(plan, step, rank_of_slot)
    if costs is None:
        return placed
    if not inter_cascade:
        return retimed(placed, costs)
    moved = near_inputs(on_idle_ranks(placed, cluster, costs, groups), cluster, costs)
    if not intra_cascade:
        return retimed(moved, costs)
    as_numbered = _on_ranks(plan, step, tuple(range(plan.num_gpus)))
    if moved == as_numbered:
        return as_numbered
    # Handoffs were priced between slots; on other ranks they may take longer than they gain.
    timed = retimed(moved, costs)
    return timed if timed.makespan_s <= as_numbered.makespan_s else as_numbered


def _on_ranks(plan: Plan, step: int, rank_of_slot: tuple[int, ...]) -> PlacedPlan:
    launches = [
        PlacedLaunch(
            cascade=launch.cascade,
            ranks=ranks_of(launch, rank_of_slot),
            start_s=launch.start_s,
            duration_s=launch.duration_s,
            phase=launch.phase,
            mode=launch.mode,
        )
        for launch in plan.launches
    ]
    return PlacedPlan(
        step=step, planner=plan.planner, world_size=plan.num_gpus, launches=in_order(launches)
    )
