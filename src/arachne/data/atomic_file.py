"""Write a file so that a reader finds the old one, the new one, or none, but never a part."""

import os
from pathlib import Path
from uuid import uuid4

from arachne.core.errors import DataError


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` under a temporary name beside `path`, sync it, then rename.

    A kill in between leaves a `.tmp` file, which nothing reads.

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
        raise DataError(f"cannot write {str(path)!r}: {error.strerror or error}") from error


def _sync_folder(folder: Path) -> None:
    """Without this a power cut may forget the rename."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
