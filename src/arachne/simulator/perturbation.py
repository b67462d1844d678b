"""What real hardware does to a plan: noise in every launch, and ranks that are slow."""

from dataclasses import dataclass
from math import exp
from random import Random

from arachne.core.placed_plan import PlacedLaunch


@dataclass(frozen=True, slots=True, kw_only=True)
class Perturbation:
    """Disturbs a simulated iteration, the same way for the same seed.

    Attributes:
        seed: Seed of the noise.
        jitter: Standard deviation of the logarithm of each launch's factor; 0.05 is about 5 %.
        slow_ranks: Ranks with the factor that their computing takes longer, as (rank, factor).
    """

    seed: int = 0
    jitter: float = 0.0
    slow_ranks: tuple[tuple[int, float], ...] = ()

    def launch_factor(self, step: int, launch: PlacedLaunch) -> float:
        """Noise of one launch; it follows the clips, so that plans meet the same noise."""
        slots = ",".join(map(str, launch.cascade.slots))
        return exp(self.jitter * Random(f"{self.seed}:{step}:{slots}").gauss(0.0, 1.0))

    def rank_factor(self, rank: int) -> float:
        """How much longer this rank computes."""
        return dict(self.slow_ranks).get(rank, 1.0)


UNDISTURBED = Perturbation()
"""No noise, no slow rank."""
