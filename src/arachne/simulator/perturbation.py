"""What real hardware does to a plan: noise, slow ranks, slow networks, and costs that are wrong."""

from dataclasses import dataclass
from math import exp
from random import Random

from arachne.core.cascade import Cascade
from arachne.core.errors import ConfigError

_MOST_DEVIATION = 10.0
"""Of a logarithm: factors stay finite, far beyond any hardware."""

_FACTORS = (1e-3, 1e3)
"""Least and most of a factor of time or bandwidth."""

_LEAST_WINDOW_S = 1e-3

_MOST_WINDOWS = 1000
"""Windows of one launch that are drawn; the rest of a longer one goes at the mean pace, from which
a thousand windows differ by a few percent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Perturbation:
    """Disturbs a simulated iteration, the same way for the same seed.

    Noise belongs to clips, shapes, degrees, and ranks at moments; never to a place in the plan. So
    two plans of one batch meet the same noise.

    Attributes:
        seed: Seed of all noise.
        jitter: Standard deviation of the logarithm of each clip's factor, drawn for each step and
            module; 0.05 is about 5 %. A launch takes the mean over its clips.
        shape_error: The same of a factor for each shape and module, drawn once for all steps: what
            the cost model has wrong about that shape.
        degree_error: The same for each degree.
        slow_ranks: Ranks with the factor that their computing takes longer, as (rank, factor).
        straggler_share: Share of time in which a rank is slow for a while.
        straggler_factor: How much longer it computes then.
        straggler_window_s: For how long; at least 1 ms.
        bandwidth: Bandwidth of all links beside the modelled one's; 0.5 doubles what is spent in
            collectives and handoffs, latency included.
    """

    seed: int = 0
    jitter: float = 0.0
    shape_error: float = 0.0
    degree_error: float = 0.0
    slow_ranks: tuple[tuple[int, float], ...] = ()
    straggler_share: float = 0.0
    straggler_factor: float = 2.0
    straggler_window_s: float = 1.0
    bandwidth: float = 1.0

    def __post_init__(self) -> None:
        for name in ("jitter", "shape_error", "degree_error"):
            if not 0.0 <= getattr(self, name) <= _MOST_DEVIATION:
                raise ConfigError(
                    f"perturbation {name} is {getattr(self, name)}; it is between 0, which is "
                    f"none, and {_MOST_DEVIATION:g}"
                )
        if not 0.0 <= self.straggler_share <= 1.0:
            raise ConfigError(
                f"perturbation straggler_share is {self.straggler_share}; it is between 0 and 1"
            )
        factors = [(f"factor of rank {rank}", factor) for rank, factor in self.slow_ranks]
        factors += [("straggler_factor", self.straggler_factor), ("bandwidth", self.bandwidth)]
        least, most = _FACTORS
        for name, factor in factors:
            if not least <= factor <= most:
                raise ConfigError(
                    f"perturbation {name} is {factor}; it is between {least:g} and {most:g}"
                )
        if not self.straggler_window_s >= _LEAST_WINDOW_S:
            raise ConfigError(
                f"perturbation straggler_window_s is {self.straggler_window_s}; it is at least "
                f"{_LEAST_WINDOW_S:g}"
            )

    def launch_factor(self, step: int, cascade: Cascade, degree: int) -> float:
        """How much longer than modelled a cascade of the step's plan takes on `degree` ranks."""
        factor = 1.0
        if self.jitter:
            batch = step + cascade.steps_ahead
            keys = [f"clip:{batch}:{cascade.module}:{slot}" for slot in cascade.slots]
            factor *= sum(self._factor(self.jitter, key) for key in keys) / len(keys)
        if self.shape_error:
            factor *= self._factor(self.shape_error, f"shape:{cascade.module}:{cascade.bucket}")
        if self.degree_error:
            factor *= self._factor(self.degree_error, f"degree:{degree}")
        return factor

    def compute_s(self, step: int, rank: int, start_s: float, work_s: float) -> float:
        """Seconds in which a rank, from `start_s` on, computes what is modelled as `work_s`."""
        work_s *= dict(self.slow_ranks).get(rank, 1.0)
        return self._straggling_s(step, rank, start_s, work_s) if self.straggler_share else work_s

    def _straggling_s(self, step: int, rank: int, start_s: float, work_s: float) -> float:
        first = int(start_s / self.straggler_window_s)
        now_s, left_s = start_s, work_s
        for window in range(first, first + _MOST_WINDOWS):
            chance = Random(f"{self.seed}:straggler:{step}:{rank}:{window}").random()
            pace = self.straggler_factor if chance < self.straggler_share else 1.0
            until_s = max(now_s, (window + 1) * self.straggler_window_s)
            if now_s + left_s * pace <= until_s:
                return now_s + left_s * pace - start_s
            left_s -= (until_s - now_s) / pace
            now_s = until_s
        work_per_s = self.straggler_share / self.straggler_factor + 1.0 - self.straggler_share
        return now_s + left_s / work_per_s - start_s

    def _factor(self, deviation: float, key: str) -> float:
        return exp(deviation * Random(f"{self.seed}:{key}").gauss(0.0, 1.0))


UNDISTURBED = Perturbation()
"""No noise, no slow rank, costs as modelled."""
