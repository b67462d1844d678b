"""Times of a placed plan whose ranks were changed after it was planned."""

from dataclasses import replace

from arachne.core.launch_inputs import input_launches
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from arachne.mapper.placement_costs import PlacementCosts


def retimed(plan: PlacedPlan, costs: PlacementCosts) -> PlacedPlan:
    """The plan with modes, durations and starts as `costs` has them on its ranks.

    Launches keep their order on each rank. Each starts as soon as its ranks are free, the launches
    of lower phases have ended, and the results of its encoders have come.
    """
    inputs = input_launches([launch.cascade for launch in plan.launches])
    free_s = [0.0] * plan.world_size
    phase, barrier_s = 0, 0.0
    timed: list[PlacedLaunch] = []
    for launch, needed in zip(plan.launches, inputs, strict=True):
        cascade, ranks = launch.cascade, launch.ranks
        if launch.phase > phase:
            phase, barrier_s = launch.phase, max(free_s)
        arrivals_s = [
            encoder.end_s + costs.handoff_s(encoder.cascade, encoder.ranks, ranks)
            for encoder in (timed[index] for index in needed)
        ]
        placed = replace(
            launch,
            start_s=max(barrier_s, *(free_s[rank] for rank in ranks), *arrivals_s),
            duration_s=costs.launch_s(cascade, ranks),
            mode=costs.mode(cascade, ranks),
        )
        for rank in ranks:
            free_s[rank] = placed.end_s
        timed.append(placed)
    return replace(plan, launches=in_order(timed))


def in_order(launches: list[PlacedLaunch]) -> tuple[PlacedLaunch, ...]:
    """Launches in a plan's one global order."""
    return tuple(sorted(launches, key=lambda launch: (launch.start_s, launch.ranks)))
