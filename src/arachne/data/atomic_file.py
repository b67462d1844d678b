"""Write a file so that a reader finds the old one, the new one, or none, but never a part."""

import os
import re
import time
from pathlib import Path
from uuid import uuid4

from arachne.core.errors import DataError
from arachne.core.refused_write import refusal

_LEFTOVER_S = 3600.0
"""No file takes this long to write; clocks of two machines differ by less."""

_LEFTOVER = re.compile(r"\..+\.[0-9a-f]{32}\.tmp", re.DOTALL)
"""What `write_whole` calls a file before it is whole."""

CACHE_FIX = (
    "make room or give this user the right to write there, or set data.cache to another folder"
)


def write_whole(path: Path, content: bytes, *, fix: str = "") -> None:
    """Write `content` under a temporary name beside `path`, sync it, then rename.

    A kill in between leaves a `.tmp` file, which nothing reads. `fix` is what users may do when the
    file cannot be written.

    Raises:
        DataError: The disk is full, or the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise cannot_write(path, error, fix) from error


def cannot_write(path: Path, error: OSError, fix: str) -> DataError:
    """One line that names the file, what the system says, and what users may do, if anything."""
    what = f"cannot write {str(path)!r}: {refusal(error)}"
    return DataError(f"{what}; {fix}" if fix else what)


def remove_leftovers(folder: Path) -> None:
    """Delete what kills left below a folder an hour ago or earlier; younger ones may be in use."""
    oldest_s = time.time() - _LEFTOVER_S
    for path in folder.rglob(".*.tmp"):
        if _LEFTOVER.fullmatch(path.name) is None:
            continue  # another program's
        try:
            if path.stat().st_mtime < oldest_s:
                path.unlink()
        except OSError:  # renamed or deleted meanwhile, or of a folder that is only read
            continue


def _sync_folder(folder: Path) -> None:
    """Without this a power cut may forget the rename."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
