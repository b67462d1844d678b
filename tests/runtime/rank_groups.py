"""What a rank of a test needs before it can meet others."""

import os
import time
from collections.abc import Iterable

from arachne.core.blocks import allowed_degrees
from arachne.runtime.clock import HostClock, clock_for
from arachne.runtime.process_groups import ProcessGroups
from arachne.runtime.recorder import Recorder
from arachne.runtime.world import World


def open_groups(world: World) -> tuple[Recorder, ProcessGroups]:
    recorder = Recorder(rank=world.rank, world_size=world.size, clock=clock_for(world.device))
    return recorder, ProcessGroups(world, allowed_degrees(world.size, world.size), recorder)


def recorder_alone() -> Recorder:
    return Recorder(rank=0, world_size=1, clock=HostClock())


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def all_end(pids: Iterable[int], within_s: float = 8.0) -> bool:
    deadline_s = time.monotonic() + within_s
    pids = list(pids)
    while any(is_running(pid) for pid in pids):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


def children() -> set[int]:
    """Running processes that this process started, but for the spawn method's own tracker."""
    with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as file:
        pids = [int(pid) for pid in file.read().split()]
    return {pid for pid in pids if is_running(pid) and "resource_tracker" not in command_of(pid)}


def command_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read()
    except OSError:
        return ""
