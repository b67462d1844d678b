"""What signals to end do to the command as long as nobody else decides: it ends in one line."""

import os
import signal
import time
from contextlib import suppress
from types import FrameType

from arachne.core.errors import Interrupted
from arachne.core.held_signals import ending_signals

SAID = "arachne: interrupted"

_SAME_REQUEST_S = 2.0
"""Ctrl-C reaches every process of a terminal, and impatient hands press it twice."""


def end_on_signals() -> None:
    """From now on the first signal raises `Interrupted`, and one that comes later ends it at once.

    Within an import the first one ends it at once too: what is raised there may be swallowed, or
    become another error, and nothing stands yet that has to be cleared up.
    """
    since_s: float | None = None

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal since_s
        now_s = time.monotonic()
        if since_s is None:
            since_s = now_s
            if not _is_importing(frame):
                raise Interrupted(number)
            with suppress(OSError):  # the terminal may be what has gone
                os.write(2, f"{SAID}\n".encode())
            os._exit(128 + number)
        if now_s - since_s > _SAME_REQUEST_S:
            os._exit(128 + number)

    for number in ending_signals():
        signal.signal(number, on_signal)


def exit_on_signals(code: int) -> None:
    """From now on a signal ends the process with this code: all is done, but for Python's own end.

    That takes seconds once torch was imported, and what is raised in it is printed.
    """
    for number in ending_signals():
        signal.signal(number, lambda *_: os._exit(code))


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
