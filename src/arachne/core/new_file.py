"""Files that are written from their first byte, whatever lies under their names."""

import errno
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import IO


def opened_anew(path: Path) -> IO[bytes]:
    """A new file to write to; what has its name goes first.

    A pipe of that name would wait for somebody who reads it, and a file may have another name, that
    of a whole checkpoint, say.

    Raises:
        OSError: A folder has that name, or nothing can be written there.
    """
    path.unlink(missing_ok=True)
    return path.open("xb")


@contextmanager
def written_aside(path: Path) -> Generator[Path, None, None]:
    """Where to write what is then called `path`; if it cannot be written, what was there stays.

    A file that was there keeps its mode. Where only that file may be written, and nothing beside
    it, it is written in its place.

    Raises:
        OSError: Nothing can be written there.
    """
    try:
        final = path.resolve()  # a link goes on to lead there
    except RuntimeError as error:  # so Python 3.11 calls a link that leads to itself
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from error
    # Others may write it too, on other machines as well; and any name that is allowed is to work.
    partial = final.with_name(f".{token_hex(8)}.partial")
    try:
        opened_anew(partial).close()
    except PermissionError:
        if not final.is_file():
            raise
        yield final
        return
    try:
        if final.is_file():
            shutil.copymode(final, partial)
        yield partial
        partial.replace(final)
    finally:
        partial.unlink(missing_ok=True)
