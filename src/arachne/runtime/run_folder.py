"""A folder for the processes of one run on one machine, which does not outlive them for long.

A process that is killed removes nothing. So each folder is locked by those that use it, and whoever
makes one removes those that nobody holds any more: the kernel gives up a lock with its last holder.
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO

_LOCK = "in-use"


class RunFolder:
    """A new folder in the machine's temporary one, held by this process and those it forks.

    Args:
        prefix: Of its name; folders with it that nobody holds are removed first.
    """

    def __init__(self, prefix: str) -> None:
        _sweep(prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        before = self.path / f"{_LOCK}.new"
        self._lock: IO[bytes] = before.open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        before.rename(self.path / _LOCK)  # under its name nobody ever finds it unlocked

    def remove(self) -> None:
        """Delete it with all that it holds; what cannot be deleted stays."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _sweep(prefix: str) -> None:
    """Remove this user's folders whose processes have all ended."""
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            if path.stat().st_uid != os.getuid():
                continue
            with (path / _LOCK).open("rb+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except OSError:
            continue  # in use, or being made or removed by another process at this moment
