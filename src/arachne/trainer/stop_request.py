"""Ask a rank to stop at its next step boundary, by SIGINT or SIGTERM; a second time ends it now."""

import os
import signal
import time
from types import FrameType

_SAME_REQUEST_S = 2.0
"""Ctrl-C reaches every process of a terminal, and the launcher passes signals on as well."""


class StopRequest:
    """Set by the first signal; all ranks agree on it in the vote before a step."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    @property
    def is_set(self) -> bool:
        """Whether this rank was asked to stop."""
        return self._since_s is not None

    def listen(self) -> None:
        """Handle signals from now on; call it in the main thread."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if self._since_s is None:
            self._since_s = now_s
        elif now_s - self._since_s > _SAME_REQUEST_S:
            os._exit(128 + number)
