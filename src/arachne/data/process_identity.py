"""Who a process is, so that others on its machine can tell that it has ended."""

import os
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def own_identity() -> str:
    """Boot, process namespace, number and start of this process: no other process has the same."""
    return f"{_own_namespace()} {os.getpid()} {_start_of(str(os.getpid()))}"


def has_ended(identity: str) -> bool:
    """Whether a process is known to have ended; False for one of another machine or container, and
    for words that name no process.
    """
    place, _, start = identity.rpartition(" ")
    namespace, _, number = place.rpartition(" ")
    is_here = namespace == _own_namespace() and number.isdecimal()
    return is_here and _start_of(number) != start


def _own_namespace() -> str:
    return f"{_BOOT_ID.read_text().strip()} {os.readlink('/proc/self/ns/pid')}"


def _start_of(process: str) -> str:
    """Clock ticks from boot to the start of a process; empty if it has ended."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    # The name in brackets may hold spaces. Then come state (Z: dead, not yet waited for) …
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]
