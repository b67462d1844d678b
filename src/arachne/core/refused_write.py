"""What the system means when it refuses a write, in words that say what to do."""

import errno
import resource

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Refusals that have nothing to do with what is written: a disk, a quota or a limit is full."""


def refusal(error: OSError) -> str:
    """What the system says; of a limit on the size of files also how to raise it."""
    if error.errno == errno.EFBIG:
        return f"{error.strerror or 'File too large'} ({_limit_text()})"
    if error.errno == errno.EBADF:
        return "it is closed"  # a standard stream is; nothing else of ours is written by number
    return error.strerror or str(error)


def _limit_text() -> str:
    soft_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft_bytes == resource.RLIM_INFINITY:
        return "the file system takes no larger ones; use another"
    return f"this process may write files of {soft_bytes:,} bytes; raise it: ulimit -f unlimited"
