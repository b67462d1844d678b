"""Remember what was found in a file for as long as it stays the same file.

The key holds the change time, which the kernel sets and no copy restores, so that a file which was
replaced by another with the same name, size and modification time is read again.
"""

import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
Identity = tuple[int, int, int, int, int]


def identity_of(path: Path) -> Identity:
    """Device, inode, size, modification time and change time of a file."""
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def remembered(read: Callable[[Path], T], max_files: int) -> Callable[[Path], T]:
    """`read`, with the answers for the last `max_files` unchanged files kept."""

    @lru_cache(maxsize=max_files)
    def read_once(path: Path, _identity: Identity) -> T:
        return read(path)

    def read_or_remember(path: Path) -> T:
        return read_once(path, identity_of(path))

    return read_or_remember


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


content_of: Callable[[Path], str] = remembered(_hash, max_files=1024)
"""SHA-256 of a file's bytes, in hex."""
