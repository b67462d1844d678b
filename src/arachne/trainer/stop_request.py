"""Ask a rank to stop at its next step boundary, by a signal; a second time ends it now.

Before the first step there is nothing to save, and nobody listens: a signal ends the rank.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from arachne.core.held_signals import ending_signals

_SAME_REQUEST_S = 2.0
"""Ctrl-C reaches every process of a terminal, and the launcher passes signals on as well."""


class StopRequest:
    """Set by the first signal; all ranks agree on it in the vote before a step."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._number = 0

    @property
    def is_set(self) -> bool:
        """Whether this rank was asked to stop."""
        return self._since_s is not None

    @property
    def number(self) -> int:
        """The signal that asked; 0 if none did."""
        return self._number

    @contextmanager
    def listening(self) -> Iterator[None]:
        """A context in which signals are requests; enter it in the main thread."""
        numbers = ending_signals()
        before = [signal.signal(number, self._on_signal) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if self._since_s is None:
            self._since_s, self._number = now_s, number
        elif now_s - self._since_s > _SAME_REQUEST_S:
            os._exit(128 + number)
