"""Encoders move to ranks of the launches that they feed, where those are idle at the time."""

from collections import defaultdict
from collections.abc import Sequence, Set
from dataclasses import replace

from arachne.core.blocks import Block
from arachne.core.cluster import Cluster
from arachne.core.launch_inputs import input_launches
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from arachne.mapper.cascade_trades import ranks_key
from arachne.mapper.placement_costs import PlacementCosts
from arachne.mapper.retiming import in_order

_SLACK_S = 1e-9


def on_idle_ranks(
    plan: PlacedPlan,
    cluster: Cluster,
    costs: PlacementCosts,
    groups: Set[Block] | None = None,
) -> PlacedPlan:
    """The plan after all such moves that save GPU-seconds of handoffs, and let none come late.

    No start or duration changes. Encoders in order of start; each may move to neighbouring ranks of
    a launch that it feeds, if they are like its own in number, nodes and speed; several ranks only
    if they are one of `groups`, None being all.
    """
    launches = list(plan.launches)
    takers_of: defaultdict[int, list[PlacedLaunch]] = defaultdict(list)
    for launch, encoders in zip(
        launches, input_launches([launch.cascade for launch in launches]), strict=True
    ):
        for encoder in encoders:
            takers_of[encoder].append(launch)
    on_rank: defaultdict[int, set[PlacedLaunch]] = defaultdict(set)
    for launch in launches:
        for rank in launch.ranks:
            on_rank[rank].add(launch)
    for index in sorted(takers_of):
        encoder, takers = launches[index], takers_of[index]
        options = [
            moved
            for moved in _moves(encoder, takers, cluster)
            if (groups is None or moved.degree == 1 or moved.ranks in groups)
            and not any(_overlap(encoder, other) for rank in moved.ranks for other in on_rank[rank])
            and not any(_makes_late(moved, encoder, taker, costs) for taker in takers)
        ]
        best = min(
            [encoder, *options],
            key=lambda moved: sum(t.degree * _handoff_s(moved, t, costs) for t in takers),
        )
        if best is not encoder:
            for rank in encoder.ranks:
                on_rank[rank].remove(encoder)
            for rank in best.ranks:
                on_rank[rank].add(best)
            launches[index] = best
    return replace(plan, launches=in_order(launches))


def _moves(
    encoder: PlacedLaunch, takers: Sequence[PlacedLaunch], cluster: Cluster
) -> list[PlacedLaunch]:
    """An encoder on each group of a taker's ranks that is like its own."""
    size, key = encoder.degree, ranks_key(encoder.ranks, cluster)
    groups = dict.fromkeys(
        taker.ranks[first : first + size]
        for taker in takers
        for first in range(0, taker.degree - size + 1, size)
    )
    return [replace(encoder, ranks=ranks) for ranks in groups if ranks_key(ranks, cluster) == key]


def _overlap(encoder: PlacedLaunch, other: PlacedLaunch) -> bool:
    return (
        other is not encoder
        and other.start_s < encoder.end_s - _SLACK_S
        and encoder.start_s < other.end_s - _SLACK_S
    )


def _makes_late(
    moved: PlacedLaunch, encoder: PlacedLaunch, taker: PlacedLaunch, costs: PlacementCosts
) -> bool:
    in_time_s = max(taker.start_s, encoder.end_s + _handoff_s(encoder, taker, costs))
    return moved.end_s + _handoff_s(moved, taker, costs) > in_time_s + _SLACK_S


def _handoff_s(encoder: PlacedLaunch, taker: PlacedLaunch, costs: PlacementCosts) -> float:
    return costs.handoff_s(encoder.cascade, encoder.ranks, taker.ranks)
