"""Clocks that the ranks of one run agree on.

A stamp is taken when the work issued so far is done: on CPU that is now; on a GPU an event marks
the place in the stream, and its time is read when the step is over, so that nothing waits for it.
"""

import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Takes stamps during a step and turns them into seconds after it."""

    def stamp(self) -> Any:
        """Mark this moment of the rank's work."""
        ...

    def seconds(self, stamps: Sequence[Any]) -> list[float]:
        """Seconds of each stamp since the epoch; ranks of one machine agree to microseconds."""
        ...


class HostClock:
    """For ranks that compute on the CPU.

    The monotonic clock, moved to the epoch once: ranks of one machine agree to microseconds, ranks
    of several to what NTP gives.
    """

    def __init__(self) -> None:
        self._origin_s = time.time() - time.perf_counter()

    def stamp(self) -> float:
        """Now, in seconds since the epoch."""
        return self._origin_s + time.perf_counter()

    def seconds(self, stamps: Sequence[float]) -> list[float]:
        """The stamps are seconds already."""
        return list(stamps)


class CudaClock:
    """For ranks that compute on a GPU: events on the current stream.

    CUDA gives the time between two events as float32 milliseconds, after a day in steps of 8 ms:
    so stamps are counted from the first one since the last reading.
    """

    def __init__(self) -> None:
        self._origin: torch.cuda.Event | None = None
        self._origin_s = 0.0

    def stamp(self) -> torch.cuda.Event:
        """An event behind the work issued so far."""
        if self._origin is None:
            torch.cuda.synchronize()
            self._origin = torch.cuda.Event(enable_timing=True)
            self._origin.record()
            self._origin_s = time.time()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, stamps: Sequence[torch.cuda.Event]) -> list[float]:
        """Waits for the work before the last stamp; earlier stamps cannot be read afterwards."""
        if not stamps:
            return []
        origin, self._origin = self._origin, None
        assert origin is not None, "a stamp was read before, or taken by another clock"
        stamps[-1].synchronize()
        return [self._origin_s + origin.elapsed_time(event) / 1e3 for event in stamps]


def clock_for(device: torch.device) -> Clock:
    """The clock that suits a device."""
    return CudaClock() if device.type == "cuda" else HostClock()
