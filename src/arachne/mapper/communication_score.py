"""How much a placement communicates."""

from arachne.core.launch_inputs import input_launches
from arachne.core.placed_plan import PlacedPlan
from arachne.mapper.placement_costs import PlacementCosts


def communication_score_s(plan: PlacedPlan, costs: PlacementCosts) -> float:
    """GPU-seconds that a placement spends in communication; lower is better.

        Σ over launches of  degree · (activations exchanged + handoffs from its encoders)

    Ignores that handoffs may be hidden behind other launches of the receivers.
    """
    inputs = input_launches([launch.cascade for launch in plan.launches])
    score_s = 0.0
    for launch, needed in zip(plan.launches, inputs, strict=True):
        exchanged_s = costs.communicate_s(launch.cascade, launch.ranks)
        encoders = [plan.launches[index] for index in needed]
        handoffs_s = sum(
            costs.handoff_s(encoder.cascade, encoder.ranks, launch.ranks) for encoder in encoders
        )
        score_s += launch.degree * (exchanged_s + handoffs_s)
    return score_s
