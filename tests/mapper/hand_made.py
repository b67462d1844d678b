"""Placed plans written by hand, for two nodes of two ranks."""

from dataclasses import replace

from arachne.core.cascade import Module
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from tests.mapper.encoder_plans import NodeCosts, cascade_of, nodes, uncached_batch

CLUSTER = nodes(2, 2)
COSTS = NodeCosts(cluster=CLUSTER)
BATCH = uncached_batch("832x480x17", "832x480x17", "832x480x81", "832x480x17")


def launch(
    module: Module,
    slot: int,
    *ranks: int,
    start_s: float,
    duration_s: float = 1.0,
    steps_ahead: int = 0,
) -> PlacedLaunch:
    cascade = replace(cascade_of(BATCH, module, slot), steps_ahead=steps_ahead)
    return PlacedLaunch(cascade=cascade, ranks=ranks, start_s=start_s, duration_s=duration_s)


def plan_of(*launches: PlacedLaunch) -> PlacedPlan:
    ordered = sorted(launches, key=lambda one: (one.start_s, one.ranks))
    return PlacedPlan(step=1, planner="test", world_size=4, launches=tuple(ordered))


def ranks_of(plan: PlacedPlan, module: str) -> dict[int, tuple[int, ...]]:
    """Where each slot's launch of a module is."""
    return {
        one.cascade.slots[0]: one.ranks for one in plan.launches if one.cascade.module == module
    }
