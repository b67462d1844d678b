"""What each launch of a placed plan takes on its ranks, before anything disturbs it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from arachne.core.cascade import Cascade
from arachne.core.cluster import Cluster
from arachne.core.placed_plan import PlacedPlan


class SimulatedCosts(Protocol):
    """What the simulated hardware takes; `cost.CostModel` is one."""

    @property
    def cluster(self) -> Cluster:
        """The hardware: nodes, NICs, speeds."""
        ...

    def launch_s(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        """Seconds of a launch, at the pace of its slowest GPU."""
        ...

    def communicate_s(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        """The part of them spent in collectives."""
        ...

    def handoff_s(
        self, cascade: Cascade, from_gpus: tuple[int, ...], to_gpus: tuple[int, ...]
    ) -> float:
        """Seconds that bring what encoder cascade `cascade` made to the GPUs that train on it."""
        ...

    def gradient_reduce_s(self) -> float:
        """Seconds of the reduce-scatter that ends a step's launches."""
        ...

    def optimizer_s(self) -> float:
        """Seconds of the optimizer."""
        ...

    def parameter_gather_s(self) -> float:
        """Seconds of the all-gather after it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSeconds:
    """One launch on its ranks.

    Attributes:
        total_s: From its start to its end.
        communicate_s: The part of it in collectives.
        compute_shares: Of each rank, the part of the rest in which it computes; the slowest has 1.
        handoffs_s: For each of the launch's inputs, from the encoder's end to when it is here.
    """

    total_s: float
    communicate_s: float
    compute_shares: tuple[float, ...]
    handoffs_s: tuple[float, ...]


def modelled_seconds(
    plan: PlacedPlan, inputs: Sequence[tuple[int, ...]], costs: SimulatedCosts
) -> list[LaunchSeconds]:
    """Each launch as `costs` prices it on its ranks; `inputs` are its encoder launches."""
    cluster = costs.cluster
    priced: list[LaunchSeconds] = []
    for launch, needed in zip(plan.launches, inputs, strict=True):
        cascade, ranks = launch.cascade, launch.ranks
        slowest = min(cluster.speed_of(rank) for rank in ranks)
        encoders = [plan.launches[index] for index in needed]
        priced.append(
            LaunchSeconds(
                total_s=costs.launch_s(cascade, ranks),
                communicate_s=costs.communicate_s(cascade, ranks),
                compute_shares=tuple(slowest / cluster.speed_of(rank) for rank in ranks),
                handoffs_s=tuple(
                    costs.handoff_s(encoder.cascade, encoder.ranks, ranks) for encoder in encoders
                ),
            )
        )
    return priced


def planned_seconds(plan: PlacedPlan, inputs: Sequence[tuple[int, ...]]) -> list[LaunchSeconds]:
    """Each launch as the plan says: all of it computing, equally long on all ranks.

    Where the plan starts a launch later than its ranks, its encoders and its phase allow, the gap
    since the last encoder's end is its handoff.
    """
    planned: list[LaunchSeconds] = []
    free_s = [0.0] * plan.world_size
    phase, barrier_s = 0, 0.0
    for launch, needed in zip(plan.launches, inputs, strict=True):
        if launch.phase > phase:
            phase, barrier_s = launch.phase, max(free_s)
        encoded_s = max((plan.launches[index].end_s for index in needed), default=0.0)
        ready_s = max(barrier_s, encoded_s, *(free_s[rank] for rank in launch.ranks))
        gap_s = launch.start_s - encoded_s if launch.start_s > ready_s else 0.0
        planned.append(
            LaunchSeconds(
                total_s=launch.duration_s,
                communicate_s=0.0,
                compute_shares=(1.0,) * launch.degree,
                handoffs_s=(gap_s,) * len(needed),
            )
        )
        for rank in launch.ranks:
            free_s[rank] = launch.end_s
    return planned
