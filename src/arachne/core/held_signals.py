"""Processes that begin deaf to signals to end, until they have decided what these mean to them.

A forked process has its parent's handlers, and a spawned one none that fits: a signal in its first
moments would be acted on as if it were the parent, or end it with a traceback.
"""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager


def ending_signals() -> tuple[signal.Signals, ...]:
    """The signals that ask this process to end: Ctrl-C's, SIGTERM, and SIGHUP of a lost terminal.

    SIGHUP only where it is not ignored: who starts a command by `nohup` wants it to stay.
    """
    asked = (signal.SIGINT, signal.SIGTERM)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return asked
    return (*asked, signal.SIGHUP)


@contextmanager
def signals_held_back() -> Generator[None]:
    """A context in which these signals wait; processes that are started in it begin deaf to them.

    Such a process stays deaf unless it calls `end_by_signals`; a thread that is started stays so.
    """
    is_main = threading.current_thread() is threading.main_thread()
    noted: list[int] = []
    numbers = ending_signals()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    # The kernel gives a signal to any thread that is not deaf: it must not end the process there.
    handlers = {
        number: signal.signal(number, lambda came, _: noted.append(came))
        for number in (numbers if is_main else ())
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number in noted:
            signal.raise_signal(number)


def end_by_signals(*numbers: signal.Signals) -> None:
    """From now on these signals end this process, also those that came while it was deaf."""
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
