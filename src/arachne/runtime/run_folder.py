"""A folder for the processes of one run on one machine, which does not outlive them for long.

A process that is killed removes nothing. So each folder is locked by those that use it, and whoever
makes one removes those that nobody holds any more: the kernel gives up a lock with its last holder.
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from arachne.core.errors import ConfigError
from arachne.core.refused_write import refusal


class RunFolder:
    """A new folder in the machine's temporary one, held by this process and those it forks.

    Args:
        prefix: Of its name; folders with it that nobody holds are removed first.

    Raises:
        ConfigError: It cannot be made.
    """

    def __init__(self, prefix: str) -> None:
        try:
            _sweep(prefix)
            self.path, self._held = _new_folder(prefix)
        except OSError as error:
            raise ConfigError(
                f"no temporary folder can be made: {refusal(error)}; make room, or set TMPDIR to a "
                "folder that can be written"
            ) from error

    def remove(self) -> None:
        """Delete it with all that it holds; what cannot be deleted stays for the next sweep."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._held)


def _new_folder(prefix: str) -> tuple[Path, int]:
    """A folder and the descriptor that holds it.

    Until it is held another process may sweep it up, as if it were one that a kill left behind.
    """
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix))
        try:
            held = _opened(path)
        except FileNotFoundError:
            continue
        fcntl.flock(held, fcntl.LOCK_EX)
        if path.is_dir():
            return path, held
        os.close(held)


def _opened(folder: Path) -> int:
    """A descriptor of the folder itself, since its files go one by one while it is removed."""
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _sweep(prefix: str) -> None:
    """Remove this user's folders whose processes have all ended."""
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            held = _opened(path)
        except OSError:
            continue  # a file, a link, another user's, or gone
        try:
            if os.fstat(held).st_uid == os.getuid():
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except OSError:
            continue  # in use
        finally:
            os.close(held)
