"""End this process when its parent ends, so that nothing outlives a run. Imports no torch."""

import multiprocessing
import multiprocessing.connection
import os
import select
import shutil
import threading
from pathlib import Path


def exit_with_parent(
    leash: multiprocessing.connection.Connection | None = None, *, folder: Path | None = None
) -> None:
    """Start a thread that ends this process as soon as the process that started it is gone.

    Also when the other end of `leash` is closed. A `folder` that only its children are left to
    delete goes with the parent. Call it in a process that `multiprocessing` started; elsewhere it
    does nothing.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    ends = [parent.sentinel] if leash is None else [parent.sentinel, leash]

    def watch() -> None:
        multiprocessing.connection.wait(ends)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)  # other children delete it as well
        os._exit(1)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


def exit_with_starter() -> None:
    """Start a thread that ends this process when the one that started it has ended.

    For a process that another program keeps, as torchrun does its ranks: killed, it passes on
    nothing.
    """
    starter = os.pidfd_open(os.getppid())

    def watch() -> None:
        select.select([starter], [], [])
        os._exit(1)

    threading.Thread(target=watch, name="starter watch", daemon=True).start()
