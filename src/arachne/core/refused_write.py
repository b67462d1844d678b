"""What the system means when it refuses a file, in words that say what to do."""

import errno
import os
import re
import resource
from pathlib import Path

from arachne.core.errors import first_line

_NUMBER = re.compile(r"os error ([0-9]+)")

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Refusals that have nothing to do with what is written: a disk, a quota or a limit is full."""

_FORBIDDEN = (errno.EACCES, errno.EPERM)

REFUSED = (*_FORBIDDEN, errno.EROFS, errno.EIO, errno.ESTALE)
"""Refusals of a file or folder, wherever it is met: the user's rights, or the disk."""

_IN_THE_WAY = (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ELOOP)
_MANY_FILES = (errno.EMFILE, errno.ENFILE)


def refusal(error: OSError) -> str:
    """What the system says; of a limit on the size of files also how to raise it."""
    if error.errno == errno.EFBIG:
        return f"{error.strerror or 'File too large'} ({_limit_text()})"
    if error.errno == errno.EBADF:
        return "it is closed"  # a standard stream is; nothing else of ours is written by number
    return error.strerror or str(error)


def refusal_at(error: OSError, named: Path | None = None) -> str:
    """The same, and of which file; not of the one that the message has `named` already."""
    if error.filename is None or str(error.filename) == str(named):
        return refusal(error)
    return f"{refusal(error)}: {str(error.filename)!r}"


def fix_of(error: OSError) -> str:
    """What users may do about it."""
    if error.errno in _FORBIDDEN:
        return "let this user read and write it"
    if error.errno in _IN_THE_WAY:
        return "move it away"
    if error.errno == errno.EROFS:
        return "mount its disk for writing"
    if error.errno in _MANY_FILES:
        return "close other files, or raise ulimit -n"
    if error.errno in FULL or error.errno is None:  # libraries that give no number ran out of room
        return "free space"
    return "look at the disk"


def refusal_of_library(error: Exception) -> str:
    """The same of a library's error that tells the system's in words: `… (os error 27)`."""
    found = _NUMBER.search(str(error))
    if found is None:
        return first_line(error)
    number = int(found[1])
    return refusal(OSError(number, os.strerror(number)))


def _limit_text() -> str:
    soft_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft_bytes == resource.RLIM_INFINITY:
        return "the file system takes no larger ones; use another"
    return f"this process may write files of {soft_bytes:,} bytes; raise it: ulimit -f unlimited"
