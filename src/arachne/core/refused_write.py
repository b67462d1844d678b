"""What the system means when it refuses a write, in words that say what to do."""

import errno
import os
import re
import resource

from arachne.core.errors import first_line

_NUMBER = re.compile(r"os error ([0-9]+)")

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Refusals that have nothing to do with what is written: a disk, a quota or a limit is full."""


def refusal(error: OSError) -> str:
    """What the system says; of a limit on the size of files also how to raise it."""
    if error.errno == errno.EFBIG:
        return f"{error.strerror or 'File too large'} ({_limit_text()})"
    if error.errno == errno.EBADF:
        return "it is closed"  # a standard stream is; nothing else of ours is written by number
    return error.strerror or str(error)


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
