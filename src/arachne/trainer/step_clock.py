"""The time between steps: rates of a run are over all of its seconds, not over steps alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter


class StepClock:
    """Tells seconds from the end of each step to the end of the next; it runs from its making."""

    def __init__(self) -> None:
        self._since_s = perf_counter()

    def lap(self) -> float:
        """Seconds since the lap before, without pauses; the next one begins."""
        now_s = perf_counter()
        took_s, self._since_s = now_s - self._since_s, now_s
        return took_s

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context whose seconds belong to no lap."""
        began_s = perf_counter()
        try:
            yield
        finally:
            self._since_s += perf_counter() - began_s
