"""A launch that ran, with the seconds that it took."""

from dataclasses import dataclass

from arachne.core.launch_mode import LaunchMode
from arachne.core.placed_plan import PlacedLaunch

ShapeKey = tuple[int, int, int, LaunchMode]
"""Tokens of a clip, clips, degree, mode: launches that cost the same on alike ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLaunch:
    """One launch, forward and backward.

    Attributes:
        launch: What ran; its `duration_s` is what the plan promised.
        rank_compute_s: Seconds that each of its ranks computed, in the order of its ranks.
        total_s: Seconds from the arrival of its last rank to its end. Ranks wait a little for each
            other in every collective; that is part of what a degree costs.
    """

    launch: PlacedLaunch
    rank_compute_s: tuple[float, ...]
    total_s: float

    def __post_init__(self) -> None:
        assert len(self.rank_compute_s) == self.launch.degree, self
        assert min(self.rank_compute_s) > 0.0, self
        assert self.total_s > 0.0, self

    @property
    def shape(self) -> ShapeKey:
        """What its duration depends on."""
        cascade = self.launch.cascade
        return cascade.num_tokens, cascade.num_clips, self.launch.degree, self.launch.mode

    @property
    def plan_error(self) -> float:
        """|promised / measured − 1|."""
        return abs(self.launch.duration_s / self.total_s - 1.0)

    def compute_s(self, speeds: tuple[float, ...] = ()) -> float:
        """Seconds that its slowest rank would have computed, were all ranks equally fast.

        Args:
            speeds: Of every rank of the cluster, as `Cluster.speeds` has them; empty counts all
                alike.
        """
        if not speeds:
            return max(self.rank_compute_s)
        pairs = zip(self.launch.ranks, self.rank_compute_s, strict=True)
        return max(seconds * speeds[rank] for rank, seconds in pairs)

    @property
    def communicate_s(self) -> float:
        """What its slowest rank did not compute; 0 at degree 1."""
        if self.launch.degree == 1:
            return 0.0
        return max(0.0, self.total_s - max(self.rank_compute_s))
