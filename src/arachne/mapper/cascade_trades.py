"""Alike launches trade their cascades, so that encoders run where their results are needed.

Two launches are alike if each takes as long on the other's ranks. When they trade, no launch gets
other ranks or times; only which clips run where changes.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import inf

from arachne.core.cascade import Cascade
from arachne.core.cluster import Cluster
from arachne.core.launch_inputs import input_launches
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from arachne.mapper.placement_costs import PlacementCosts

_MAX_SWEEPS = 8
_MAX_PARTNERS = 32
_SLACK_S = 1e-9


def near_inputs(plan: PlacedPlan, cluster: Cluster, costs: PlacementCosts) -> PlacedPlan:
    """The plan after all trades that save GPU-seconds of handoffs and add no seconds of lateness.

    Pair by pair: each launch in turn takes the best of the first 32 seats at the other ends of its
    handoffs, until a sweep over all launches finds none (or 8 sweeps).
    """
    seats = _Seats(plan, cluster, costs)
    for _ in range(_MAX_SWEEPS):
        traded = [seats.trade(cascade) for cascade in range(len(plan.launches))]
        if not any(traded):
            break
    return seats.plan()


def alike_key(launch: PlacedLaunch, cluster: Cluster) -> Hashable:
    """Equal for launches that are alike."""
    cascade = launch.cascade
    work = (cascade.module, cascade.steps_ahead, launch.phase, launch.mode, launch.duration_s)
    return work, ranks_key(launch.ranks, cluster)


def ranks_key(ranks: Sequence[int], cluster: Cluster) -> Hashable:
    """Equal for groups of ranks on which any cascade takes the same time."""
    members: dict[int, int] = {}
    for rank in ranks:
        node = cluster.node_of(rank)
        members[node] = members.get(node, 0) + 1
    return tuple(members.values()), tuple(cluster.speed_of(rank) for rank in ranks)


class _Seats:
    """Who sits where: each launch is a seat (ranks and times), taken by one cascade.

    Cascades and seats have the numbers of their launches in the plan that was given.
    """

    def __init__(self, plan: PlacedPlan, cluster: Cluster, costs: PlacementCosts) -> None:
        num_launches = len(plan.launches)
        self._plan = plan
        self._cluster = cluster
        self._costs = costs
        self._seat_of = list(range(num_launches))
        self._cascade_on = list(range(num_launches))
        self._keys = [alike_key(launch, cluster) for launch in plan.launches]
        self._on_rank: defaultdict[tuple[Hashable, int], list[int]] = defaultdict(list)
        self._price_s: dict[Hashable, float] = {}
        self._handoffs: list[list[tuple[int, int]]] = [[] for _ in range(num_launches)]
        for seat, launch in enumerate(plan.launches):
            for rank in launch.ranks:
                self._on_rank[self._keys[seat], rank].append(seat)
        inputs = input_launches([launch.cascade for launch in plan.launches])
        for trained, encoders in enumerate(inputs):
            for encoder in encoders:
                self._handoffs[encoder].append((encoder, trained))
                self._handoffs[trained].append((encoder, trained))

    def plan(self) -> PlacedPlan:
        """As it is now."""
        launches = self._plan.launches
        return replace(
            self._plan,
            launches=tuple(
                replace(launch, cascade=launches[cascade].cascade)
                for launch, cascade in zip(launches, self._cascade_on, strict=True)
            ),
        )

    def trade(self, cascade: int) -> bool:
        """Trade a cascade's seat for the alike one that saves most; whether there was any."""
        own_s, _ = self._seconds(self._handoffs[cascade])
        best_s, best = _SLACK_S, None
        for partner in islice(self._partners(cascade), _MAX_PARTNERS) if own_s > 0.0 else ():
            saved_s = self._saved_s(cascade, partner)
            if saved_s > best_s:
                best_s, best = saved_s, partner
            if best_s >= own_s:
                break  # nearly as good as it can get
        if best is not None:
            self._swap(cascade, best)
        return best is not None

    def _partners(self, cascade: int) -> Iterator[int]:
        """Cascades on alike seats, where the other ends of a cascade's handoffs are."""
        seat = self._seat_of[cascade]
        nodes = self._nodes_of(seat)
        ranks: dict[int, None] = {}
        for pair in self._handoffs[cascade]:
            other = self._seat_of[pair[0] if pair[1] == cascade else pair[1]]
            ranks |= dict.fromkeys(self._plan.launches[other].ranks)
            for node in sorted(self._nodes_of(other) - nodes):  # within a node all links are alike
                first = node * self._cluster.gpus_per_node
                ranks |= dict.fromkeys(range(first, first + self._cluster.gpus_per_node))
        key = self._keys[seat]
        seats = dict.fromkeys(s for rank in ranks for s in self._on_rank.get((key, rank), ()))
        return (self._cascade_on[other] for other in seats if other != seat)

    def _nodes_of(self, seat: int) -> set[int]:
        return {self._cluster.node_of(rank) for rank in self._plan.launches[seat].ranks}

    def _saved_s(self, cascade: int, partner: int) -> float:
        handoffs = self._handoffs[cascade] + self._handoffs[partner]
        before_s, late_before_s = self._seconds(handoffs)
        self._swap(cascade, partner)
        after_s, late_after_s = self._seconds(handoffs)
        self._swap(cascade, partner)
        return before_s - after_s if late_after_s <= late_before_s + _SLACK_S else 0.0

    def _seconds(self, handoffs: list[tuple[int, int]]) -> tuple[float, float]:
        """GPU-seconds that handoffs take, and seconds that they are late for planned starts.

        Infinitely late if an encoder does not even end in time.
        """
        gpu_seconds = late_s = 0.0
        for encoder, trained in handoffs:
            giver = self._plan.launches[self._seat_of[encoder]]
            taker = self._plan.launches[self._seat_of[trained]]
            cascade = self._plan.launches[encoder].cascade
            handoff_s = self._priced_s(cascade, giver.ranks, taker.ranks)
            gpu_seconds += taker.degree * handoff_s
            if giver.end_s > taker.start_s + _SLACK_S:
                late_s = inf
            late_s += max(0.0, giver.end_s + handoff_s - taker.start_s)
        return gpu_seconds, late_s

    def _priced_s(self, cascade: Cascade, giver: tuple[int, ...], taker: tuple[int, ...]) -> float:
        work = (cascade.module, cascade.bucket, cascade.num_tokens, cascade.num_clips)
        key = (work, giver, taker)
        price_s = self._price_s.get(key)
        if price_s is None:
            self._price_s[key] = price_s = self._costs.handoff_s(cascade, giver, taker)
        return price_s

    def _swap(self, cascade: int, partner: int) -> None:
        seat, other = self._seat_of[cascade], self._seat_of[partner]
        self._seat_of[cascade], self._seat_of[partner] = other, seat
        self._cascade_on[seat], self._cascade_on[other] = partner, cascade
