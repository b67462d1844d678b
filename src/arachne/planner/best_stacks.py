"""How many clips of one shape are best stacked on one block: counts instead of clips."""

from collections.abc import Sequence
from math import inf


class BestStacks:
    """Least seconds of n clips of a shape on a block, over all ways to cut n into stacks.

        seconds[n] = min over k of duration(k) + seconds[n - k]

    Attributes:
        seconds: Of 0, 1, … clips, as far as `extend` was asked; infinite if some must not fit.
    """

    def __init__(self, durations_s: Sequence[float]) -> None:
        """`durations_s[k - 1]`: seconds of a stack of k clips; infinite where it does not fit."""
        fitting = [(size, s) for size, s in enumerate(durations_s, start=1) if s < inf]
        self.seconds: list[float] = [0.0]
        self._last_size: list[int] = [0]
        self._fitting = fitting[::-1]  # a tie goes to the larger stack

    def extend(self, num_clips: int) -> list[float]:
        """Fill `seconds` up to `num_clips`, and give it."""
        seconds, last_size = self.seconds, self._last_size
        for count in range(len(seconds), num_clips + 1):
            best_s, best_size = inf, 0
            for size, duration_s in self._fitting:
                if size <= count:
                    total_s = duration_s + seconds[count - size]
                    if total_s < best_s:
                        best_s, best_size = total_s, size
            seconds.append(best_s)
            last_size.append(best_size)
        return seconds

    def sizes(self, num_clips: int) -> list[int]:
        """The stacks that `num_clips` are cut into, largest first."""
        self.extend(num_clips)
        sizes: list[int] = []
        while num_clips:
            size = self._last_size[num_clips]
            assert size, "these clips do not fit on this block"
            sizes.append(size)
            num_clips -= size
        return sorted(sizes, reverse=True)
