"""The clock of a simulation: actions that happen one after another."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count


class EventQueue:
    """Actions in order of time, then priority, then arrival.

    Attributes:
        now_s: Time of the action that runs.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, bool, int, Callable[[], None]]] = []
        self._arrivals = count()

    def at(self, time_s: float, action: Callable[[], None], *, is_last: bool = False) -> None:
        """Let `action` happen at `time_s`; with `is_last`, after all others of that moment."""
        assert time_s >= self.now_s, f"{time_s} s is over; it is {self.now_s} s"
        heappush(self._events, (time_s, is_last, next(self._arrivals), action))

    def run(self) -> None:
        """Let everything happen, also what happens because of it."""
        while self._events:
            self.now_s, _, _, action = heappop(self._events)
            action()
