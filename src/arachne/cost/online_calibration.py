"""Keeps the cost model right while a run goes on, from the launches that the run makes anyway.

A recalibration fits the rates to the launches since the last one, a few of each shape. The present
rates serve as a prior, which remembers what earlier launches told; and the result is taken only
where it predicts those launches better.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from arachne.core.cluster import Cluster
from arachne.cost.calibration import fitted_cluster, prediction_errors
from arachne.cost.measured_launch import MeasuredLaunch, ShapeKey
from arachne.cost.model import CostModel
from arachne.cost.rank_speeds import RankSpeeds

_MOST_OF_SHAPE = 8
"""Launches of each shape that count: frequent shapes do not outweigh rare ones by more."""

_MOST = 256
"""Launches that count in all; bounds the time of a fit."""

_LEAST = 64
"""Where fewer came since the last recalibration, older ones count again."""

_TRUST = 0.1
"""Launches that the proportions of the present rates are worth. *Assumption*: enough to settle what
few shapes leave open, too little to hold back a correction."""

_MOST_ROUNDS = 3
"""Rates and speeds are fitted in turns, since each needs the other; mostly one round is enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalibration:
    """What one recalibration found.

    Attributes:
        error_before: Median |predicted / measured − 1| of the window under the model until now.
        error_after: The same under the model from now on.
        is_taken: Whether the refitted rates predict better, and are used.
        slowed: Ranks that count as slow from now on.
        recovered: Ranks that no longer do.
    """

    error_before: float
    error_after: float
    is_taken: bool
    slowed: tuple[int, ...]
    recovered: tuple[int, ...]


class OnlineCalibration:
    """The cost model of a run, and the newest launches that it is held against.

    Deterministic: the same launches in the same order give the same cluster.

    Args:
        costs: The model that the run starts with.
    """

    def __init__(self, costs: CostModel) -> None:
        cluster = costs.cluster
        self._costs = replace(costs, cluster=replace(cluster, speeds=()))
        self._ranks = RankSpeeds(cluster.speeds or (1.0,) * cluster.num_gpus)
        self._new: list[MeasuredLaunch] = []
        self._old: list[MeasuredLaunch] = []

    @property
    def cluster(self) -> Cluster:
        """What plans are made for."""
        speeds = self._ranks.speeds
        return replace(self._costs.cluster, speeds=speeds if min(speeds) < 1.0 else ())

    @property
    def scores(self) -> dict[int, float]:
        """Straggler scores at the last recalibration, by rank (`cost/rank_speeds.py`)."""
        return dict(self._ranks.scores)

    def observe(self, launches: Iterable[MeasuredLaunch]) -> None:
        """Add a step's launches, in the order of its plan."""
        trained = [each for each in launches if each.launch.cascade.module == "dit"]
        self._new = _newest([*self._new, *trained], _MOST)
        for each in trained:
            launch = each.launch
            if self._costs.model.num_heads % launch.mode.ulysses(launch.degree) == 0:
                # Else its ranks have unequal work, and none is slow for having more of it.
                self._ranks.observe(each)

    def recalibrate(self) -> Recalibration | None:
        """Refit rates and speeds to what was observed; None if nothing was since the last time."""
        if not self._new:
            return None
        window = _newest([*self._old, *self._new], max(_LEAST, len(self._new)))
        self._old, self._new = window, []
        before = self._costs
        refitted, speeds = before, self._ranks.corrected(before, self._ranks.speeds)
        for _ in range(_MOST_ROUNDS):
            fitted_for = speeds
            cluster = fitted_cluster(before, window, trust=_TRUST, speeds=speeds)
            refitted = replace(before, cluster=cluster)
            speeds = self._ranks.corrected(refitted, fitted_for)
            if speeds == fitted_for:
                break
        error_before = median(prediction_errors(before, window, speeds))
        error_after = median(prediction_errors(refitted, window, speeds))
        is_taken = error_after < error_before
        if is_taken:
            self._costs = refitted
        slowed, recovered = self._ranks.judge(self._costs, speeds)
        return Recalibration(
            error_before=error_before,
            error_after=error_after if is_taken else error_before,
            is_taken=is_taken,
            slowed=slowed,
            recovered=recovered,
        )


def _newest(launches: Sequence[MeasuredLaunch], most: int) -> list[MeasuredLaunch]:
    """The last ones of launches that are ordered from old to new."""
    num_of_shape: Counter[ShapeKey] = Counter()
    kept: list[MeasuredLaunch] = []
    for each in reversed(launches):
        if num_of_shape[each.shape] < _MOST_OF_SHAPE and len(kept) < most:
            num_of_shape[each.shape] += 1
            kept.append(each)
    return kept[::-1]
