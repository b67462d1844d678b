"""Which ranks are slow, from what each of them computed in its own launches."""

from collections import deque
from collections.abc import Iterable
from statistics import median, median_low

from arachne.cost.calibration import predicted_s
from arachne.cost.measured_launch import MeasuredLaunch, ShapeKey
from arachne.cost.model import CostModel

_NEWEST = 32
"""Launches of each rank that count."""

_LEAST = 4
"""Fewer launches of a rank tell nothing of it."""

_SLOW, _NORMAL = 1.15, 1.08
"""Scores above which a rank becomes slow, and below which it is slow no longer: between them it
stays what it was, so that plans do not swing."""

Speeds = tuple[float, ...]
"""Of every rank, beside the fastest one's, which is 1."""


class RankSpeeds:
    """The speeds that plans count on, and the newest launches of each rank.

    A rank's score is the median of measured / predicted computing over its newest launches, beside
    what is usual: 1 is as predicted, 1.5 takes half as long again.

    Args:
        speeds: Of every rank, as known before.
    """

    def __init__(self, speeds: Speeds) -> None:
        self.speeds = speeds
        self.scores: dict[int, float] = {}
        """Scores at the last judgement, by rank; ranks with few launches have none."""
        self._launches = tuple(
            deque[tuple[MeasuredLaunch, float]](maxlen=_NEWEST) for _ in range(len(speeds))
        )

    def observe(self, launch: MeasuredLaunch) -> None:
        """Add a launch whose ranks all have the same work."""
        for rank, compute_s in zip(launch.launch.ranks, launch.rank_compute_s, strict=True):
            self._launches[rank].append((launch, compute_s))

    def corrected(self, costs: CostModel, assumed: Speeds) -> Speeds:
        """Speeds that explain the launches under a cost model; for the next fit of that model.

        Args:
            costs: The model; its cluster has no speeds.
            assumed: Speeds that the model was fitted with: they tell what is usual.
        """
        return self._speeds_of(self._relative_scores(costs, assumed))

    def judge(self, costs: CostModel, assumed: Speeds) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ranks that become slow, and ranks that are slow no longer; for plans from now on.

        A rank becomes slow when two judgements in a row find it slow.
        """
        suspects = {rank for rank, score in self.scores.items() if score > _SLOW}
        self.scores = self._relative_scores(costs, assumed)
        changes = list(zip(self.speeds, self._speeds_of(self.scores), strict=True))
        slowed = [rank for rank, (old, new) in enumerate(changes) if new < old == 1.0]
        recovered = [rank for rank, (old, new) in enumerate(changes) if old < new == 1.0]
        self.speeds = _beside_fastest(
            old if rank in slowed and rank not in suspects else new
            for rank, (old, new) in enumerate(changes)
        )
        return tuple(rank for rank in slowed if rank in suspects), tuple(recovered)

    def _relative_scores(self, costs: CostModel, assumed: Speeds) -> dict[int, float]:
        """Scores by rank; usual is what most ranks show once their speeds are allowed for."""
        modelled_s: dict[ShapeKey, float] = {}
        scores: dict[int, float] = {}
        for rank, launches in enumerate(self._launches):
            if len(launches) < _LEAST:
                continue
            ratios: list[float] = []
            for each, compute_s in launches:
                if each.shape not in modelled_s:
                    modelled_s[each.shape], _ = predicted_s(costs, each.launch)
                ratios.append(compute_s / modelled_s[each.shape])
            scores[rank] = median(ratios)
        usual = median_low([score * assumed[rank] for rank, score in scores.items()] or [1.0])
        return {rank: score / usual for rank, score in scores.items()}

    def _speeds_of(self, scores: dict[int, float]) -> Speeds:
        """Ranks without a score keep their speed."""
        speeds = list(self.speeds)
        for rank, score in scores.items():
            limit = _SLOW if self.speeds[rank] == 1.0 else _NORMAL
            speeds[rank] = 1.0 / score if score > limit else 1.0
        return _beside_fastest(speeds)


def _beside_fastest(speeds: Iterable[float]) -> Speeds:
    """If all ranks are slow, it is the device that is: the fastest rank has speed 1."""
    found = tuple(speeds)
    return tuple(speed / max(found) for speed in found)
