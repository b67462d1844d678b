"""One process beside rank 0 that makes plans, and that can be ended whatever it is doing."""

import multiprocessing
import multiprocessing.connection
import os
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing.process import BaseProcess
from typing import TypeVar

from arachne.core.held_signals import signals_held_back
from arachne.core.parent_watch import exit_with_parent

Request = TypeVar("Request")
Result = TypeVar("Result")


class PlanningProcess:
    """Calls functions one after another in a process of its own, started at the first call.

    An executor cannot stop a call that runs; here its process holds one end of a pipe, the leash,
    and exits as soon as the other end is closed.
    """

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would take rank 0's threads along
        self._far_end, self._leash = context.Pipe(duplex=False)
        with signals_held_back():  # Python's own helper process, if this starts it, hears no SIGHUP
            self._pool = ProcessPoolExecutor(
                max_workers=1, mp_context=context, initializer=_start, initargs=(self._far_end,)
            )

    def submit(self, function: Callable[[Request], Result], request: Request) -> Future[Result]:
        """The future result of a call; function and request are picklable.

        Raises:
            BrokenProcessPool: The process ended; make another one.
        """
        with signals_held_back():  # rank 0 decides when the run ends, and this process with it
            return self._pool.submit(function, request)

    def end(self) -> None:
        """End the process now; calls that did not finish fail or are cancelled."""
        self._leash.close()
        # One that was stopped, or holds the interpreter, does not notice. Python 3.14 has
        # `kill_workers`; before there is no public way.
        processes: dict[int, BaseProcess] = getattr(self._pool, "_processes", None) or {}
        for process in list(processes.values()):
            process.kill()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._far_end.close()


def _start(leash: multiprocessing.connection.Connection) -> None:
    """The planning process gives way to the ranks, and ends with rank 0."""
    exit_with_parent(leash)
    os.nice(10)
