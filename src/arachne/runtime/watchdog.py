"""A process beside the ranks of a machine that ends them with a report when they hang.

It reads the ranks' progress files, needs no network and no interpreter of theirs. For the report it
sends each rank SIGUSR1, on which `faulthandler` writes the stacks of all threads, even while one of
them holds the interpreter. Imports no torch.
"""

import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from arachne.core.lasting_streams import keep_standard_streams
from arachne.core.refused_write import refusal
from arachne.core.strict_json import from_json
from arachne.runtime.hang import Hang, hang_of
from arachne.runtime.hang_report import headline, report
from arachne.runtime.progress import RankProgress, read_progress

_LOOKS_PER_TIMEOUT = 20
_LONGEST_PAUSE_S = 1.0
_STACKS_WITHIN_S = 3.0
"""*Assumption*: ten times what 16 processes needed, 0.3 s; one that needs longer has no stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOrder:
    """What a watchdog watches.

    Attributes:
        folder: Where the ranks' files are.
        ranks: Ranks of this machine.
        timeout_s: How long a rank may be silent.
        report_dir: Where a report is written.
        node: The machine's index, if there are several.
        parent: Process that started the watchdog, which ends with it, however soon that is.
        has_launcher: Whether a launcher of ours reads the headline in the folder and says it;
            otherwise the watchdog says it, and removes the folder.
    """

    folder: str
    ranks: tuple[int, ...]
    timeout_s: float
    report_dir: str
    node: int | None
    parent: int
    has_launcher: bool


def progress_path(folder: Path, rank: int) -> Path:
    """The file in which a rank says what it does."""
    return folder / f"progress-{rank}"


def stacks_path(folder: Path, rank: int) -> Path:
    """The file into which a rank's stacks are written on SIGUSR1."""
    return folder / f"stacks-{rank}"


def headline_path(folder: Path) -> Path:
    """The file that holds the headline of a hang, and where its report is."""
    return folder / "hang"


def watch(order: WatchOrder) -> None:
    """Look again and again, until the ranks hang or the process that started this one is gone."""
    pause_s = min(order.timeout_s / _LOOKS_PER_TIMEOUT, _LONGEST_PAUSE_S)
    since_s = last_look_s = time.monotonic()
    was_hanging = False
    while os.getppid() == order.parent:
        time.sleep(pause_s)
        now_s = time.monotonic()
        if now_s - last_look_s > pause_s + order.timeout_s / 2:
            since_s = now_s  # this process was stopped, and the ranks perhaps with it
        last_look_s = now_s
        ranks = _look(order)
        stopped = [each.rank for each in ranks if _process_state(each.pid) in "Tt"]
        hang = hang_of(
            ranks,
            now_s=now_s,
            timeout_s=order.timeout_s,
            watched_since_s=since_s,
            stopped=stopped,
        )
        # Twice, since a rank may have begun something else between the readings of two files.
        if hang is not None and was_hanging and all(_process_state(each.pid) for each in ranks):
            _end(order, hang, ranks, stopped, now_s)
            return
        was_hanging = hang is not None


def _look(order: WatchOrder) -> list[RankProgress]:
    return [read_progress(progress_path(Path(order.folder), rank), rank) for rank in order.ranks]


def _process_state(pid: int) -> str:
    """The kernel's letter for a process: `T` if it is stopped, empty if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    state = stat.rpartition(")")[2].split()[0]
    return "" if state in "ZX" else state


def _end(
    order: WatchOrder,
    hang: Hang,
    ranks: Sequence[RankProgress],
    stopped: Sequence[int],
    now_s: float,
) -> None:
    line = headline(hang, ranks, now_s=now_s, stopped=stopped)
    text = report(line, ranks, _stacks(order, ranks, stopped), now_s=now_s, stopped=stopped)
    path = _report_path(order, ranks)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        line = f"{line}; report: {path}"
    except OSError as error:
        line = f"{line}; the report cannot be written to {path} ({refusal(error)}) and stands above"
        sys.stderr.write(text)
    folder = Path(order.folder)
    headline_path(folder).write_text(line, encoding="utf-8")
    if not order.has_launcher:
        sys.stderr.write(f"arachne: {line}\n")
        sys.stderr.flush()
        shutil.rmtree(folder, ignore_errors=True)
    for each in ranks:
        _send(each.pid, signal.SIGKILL)


def _report_path(order: WatchOrder, ranks: Sequence[RankProgress]) -> Path:
    step = max((each.step for each in ranks if each.step is not None), default=0)
    node = "" if order.node is None else f"-node-{order.node}"
    return Path(order.report_dir) / f"hang-{step + 1}{node}.txt"


def _stacks(
    order: WatchOrder, ranks: Sequence[RankProgress], stopped: Sequence[int]
) -> dict[int, str]:
    """The stacks of each rank that reacts; a stopped process goes on for it."""
    for each in ranks:
        _send(each.pid, signal.SIGUSR1)
        if each.rank in stopped:
            _send(each.pid, signal.SIGCONT)
    paths = {each.rank: stacks_path(Path(order.folder), each.rank) for each in ranks}
    deadline_s = time.monotonic() + _STACKS_WITHIN_S
    sizes: dict[int, int] = {}
    while time.monotonic() < deadline_s:
        time.sleep(0.05)
        before, sizes = sizes, {rank: _size(path) for rank, path in paths.items()}
        if all(sizes.values()) and sizes == before:
            break
    return {rank: path.read_text(errors="replace") for rank, path in paths.items() if path.exists()}


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    keep_standard_streams()
    watch(from_json(sys.argv[1], WatchOrder, what="watch order"))
