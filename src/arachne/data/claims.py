"""Claims on pieces of work, as files in a folder that processes and machines share; no server.

A claim is a file that only one process can create. Its owner touches it every few seconds for as
long as it lives. A claim whose owner has ended is taken over: at once where that can be seen (same
machine), else after its file was not touched for `expires_s` on the watcher's own clock, so that
clocks of two machines need not agree. In the rare case that two processes both believe in a claim,
for example when one was suspended, they do the same work twice, which must be harmless.
"""

import os
import tempfile
import threading
import time
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

from arachne.data.atomic_file import CACHE_FIX, cannot_write
from arachne.data.process_identity import has_ended, own_identity

EXPIRES_S = 60.0
"""*Assumption*: longer than any pause of a process or network file system that still lives."""

_BEATS_PER_EXPIRY = 6

_Mark = tuple[int, int]
"""A claim's inode and when it was last touched. A new claim may get the inode of an older one."""


class Claims:
    """This process's claims: a context in which they are kept alive; at its end all are given up.

    Each process makes its own, after a fork too.
    """

    def __init__(self, folder: Path, *, expires_s: float = EXPIRES_S) -> None:
        self._folder = folder
        self._expires_s = expires_s
        self._identity = own_identity()
        self._held: set[str] = set()
        self._lock = threading.Lock()
        self._watched: dict[str, tuple[_Mark, float]] = {}
        self._closing = threading.Event()
        self._beats = threading.Thread(target=self._beat, name="claims", daemon=True)

    def __enter__(self) -> Self:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(self._folder, error, CACHE_FIX) from error
        self._beats.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._beats.join()
        for key in tuple(self._held):
            self.release(key)
        remove_abandoned_claims(self._folder, expires_s=self._expires_s)

    def take(self, key: str) -> bool:
        """Claim a piece of work; False while another process has it.

        Raises:
            DataError: The folder cannot be written.
        """
        path = self._path_of(key)
        if not self._create(path):
            mark = self._abandoned(key)
            if mark is None or not self._take_over(path, mark):
                return False
        self._watched.pop(key, None)
        with self._lock:
            self._held.add(key)
        return True

    def release(self, key: str) -> None:
        """Give up a claim, unless another process has taken it over meanwhile."""
        with self._lock:
            self._held.discard(key)
        path = self._path_of(key)
        if _owner_of(path) == self._identity:
            path.unlink(missing_ok=True)

    def _path_of(self, key: str) -> Path:
        return self._folder / key

    def _create(self, path: Path) -> bool:
        try:
            with path.open("x") as file:
                file.write(self._identity)
        except FileExistsError:
            return False
        except OSError as error:
            raise cannot_write(path, error, CACHE_FIX) from error
        return True

    def _abandoned(self, key: str) -> _Mark | None:
        """The mark of a claim whose owner has ended, or that has stood untouched for `expires_s`;
        None of another.
        """
        path = self._path_of(key)
        try:
            mark = _mark_of(path)
        except FileNotFoundError:
            return None
        owner = _owner_of(
            path
        )  # after its mark: should the claim change hands now, the mark is old
        if owner and has_ended(owner):
            return mark
        now_s = time.monotonic()
        seen, since_s = self._watched.get(key, (None, now_s))
        if seen != mark:
            since_s = now_s
        self._watched[key] = (mark, since_s)
        return mark if now_s - since_s > self._expires_s else None

    def _take_over(self, path: Path, mark: _Mark) -> bool:
        """Move the claim with this mark aside, of which only one process is capable, and claim
        anew; False if it has another by now.
        """
        aside = path.with_name(f".{path.name}.{uuid4().hex}")
        try:
            os.rename(path, aside)
            if _mark_of(aside) != mark:  # another process was faster, or its owner lives
                os.rename(aside, path)
                return False
            aside.unlink()
        except FileNotFoundError:
            return False
        return self._create(path)

    def _beat(self) -> None:
        while not self._closing.wait(self._expires_s / _BEATS_PER_EXPIRY):
            with self._lock:
                held = tuple(self._held)
            for key in held:
                try:
                    os.utime(self._path_of(key))
                except OSError:  # taken over, or given up just now
                    continue


def remove_abandoned_claims(folder: Path, *, expires_s: float = EXPIRES_S) -> None:
    """Remove claims of ended processes, and those that nobody has touched for `expires_s` by the
    clock of the folder's disk: their work may be done, and then nobody asks for it.

    A folder that is not there, or cannot be written, is left as it is.
    """
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".clock.") as now:
            oldest_s = Path(now.name).stat().st_mtime - expires_s
            paths = [path for path in folder.iterdir() if path != Path(now.name)]
            for path in paths:
                if has_ended(_owner_of(path)) or _touched_s(path) < oldest_s:
                    path.unlink(missing_ok=True)
    except OSError:
        return


def _touched_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # given up meanwhile
        return inf


def _mark_of(path: Path) -> _Mark:
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns


def _owner_of(path: Path) -> str:
    """The identity in a claim; empty if it is gone, or its owner was ended before it wrote it, and
    no process's if something else wrote it.
    """
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
