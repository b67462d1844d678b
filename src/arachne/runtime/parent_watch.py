"""End this process when its parent ends, so that nothing outlives a run. Imports no torch."""

import multiprocessing
import multiprocessing.connection
import os
import threading


def exit_with_parent() -> None:
    """Start a thread that ends this process as soon as the process that started it is gone.

    Call it in a process that `multiprocessing` started; elsewhere it does nothing.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    sentinel = parent.sentinel

    def watch() -> None:
        multiprocessing.connection.wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()
