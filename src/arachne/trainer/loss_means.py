"""Training loss by shape and by noise level, as running means: a step alone holds too few clips."""

from collections import defaultdict, deque
from collections.abc import Sequence
from math import isfinite
from statistics import fmean

from arachne.core.batch import Batch

_WINDOW = 64
"""Clips of one mean. *Assumption*: the loss of single clips scatters by about its own size, so the
mean is good to about an eighth, and still follows the training."""

SIGMA_QUARTERS = ("q1", "q2", "q3", "q4")
"""Quarters of the noise level: q1 from 0 (clean) to 0.25, up to q4 from 0.75 to 1 (noise)."""


class LossMeans:
    """Means over the newest 64 clips of each bucket and of each quarter of the noise level."""

    def __init__(self) -> None:
        self._of_bucket: dict[str, deque[float]] = defaultdict(_window)
        self._of_quarter: dict[str, deque[float]] = defaultdict(_window)

    def take(
        self,
        batch: Batch,
        sigmas: Sequence[float],
        clip_losses: Sequence[float],
        is_kept: Sequence[bool],
    ) -> None:
        """Count one step's clips; a clip that was left out, or has no finite loss, counts not."""
        slots = zip(batch.clips, sigmas, clip_losses, is_kept, strict=True)
        for clip, sigma, loss, kept in slots:
            if kept and isfinite(loss):
                self._of_bucket[str(clip.bucket)].append(loss)
                self._of_quarter[quarter_of(sigma)].append(loss)

    @property
    def by_bucket(self) -> dict[str, float]:
        """Mean loss of each bucket that was trained, by name, sorted."""
        return {name: fmean(losses) for name, losses in sorted(self._of_bucket.items())}

    @property
    def by_sigma(self) -> dict[str, float]:
        """Mean loss of each quarter of the noise level that was trained, lowest noise first."""
        return {name: fmean(losses) for name, losses in sorted(self._of_quarter.items())}


def quarter_of(sigma: float) -> str:
    """The quarter that a noise level lies in: `q1` to `q4`."""
    return SIGMA_QUARTERS[min(int(4 * sigma), 3)]


def _window() -> deque[float]:
    return deque(maxlen=_WINDOW)
