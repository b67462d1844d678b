"""Ranks that stop answering, which have to be named, and slow ones, which must not be."""

import random
import shutil
import time
from pathlib import Path

from survival_tally import Tally
from tests.runtime.planted_hangs import (
    COLLECTIVES,
    CULPRIT,
    HANGING_LAUNCH,
    HANGS,
    STEP,
    hang_in_a_launch,
)
from tests.runtime.slow_steps import longest_waits_s

from arachne.core.errors import LostRankError
from arachne.runtime.launcher import run_ranks
from arachne.runtime.watched import collective_timeout_s

NUM_RANKS = 4
TIMEOUT_S = 3.0


def hangs(root: Path, cases: int, rng: random.Random, tally: Tally) -> None:
    """A rank of four stops in a known launch: its kind and its collective in turn.

    The report has to be there within twice the time-out, and to name the rank and the launch.
    """
    planted = [(operation, hang) for hang in sorted(HANGS) for operation in sorted(COLLECTIVES)]
    rng.shuffle(planted)
    tally.others["timeout_s"] = TIMEOUT_S
    for case in range(cases):
        operation, hang = planted[case % len(planted)]
        folder = root / f"hang-{case}"
        folder.mkdir()
        message = ""
        try:
            run_ranks(
                NUM_RANKS,
                hang_in_a_launch,
                (folder, TIMEOUT_S, operation, hang),
                timeout_s=collective_timeout_s(TIMEOUT_S),
            )
        except LostRankError as error:
            message = str(error)
        report = folder / f"hang-{STEP + 1}.txt"
        faults: list[str] = []
        if f"rank {CULPRIT} has not answered" not in message:
            faults.append(f"the rank is not named: {message!r}")
        if f"in launch {HANGING_LAUNCH} " not in message:
            faults.append(f"the launch is not named: {message!r}")
        seconds = 0.0
        if report.exists():
            # The launcher's own end comes after it.
            since_s = float((folder / "hangs since").read_text())
            seconds = report.stat().st_mtime - (time.time() - time.monotonic()) - since_s
            if seconds > 2 * TIMEOUT_S:
                faults.append(f"reported after {seconds:.1f} s")
        else:
            faults.append("there is no report")
        tally.count(f"{hang} before {operation}", faults, seconds=seconds)
        shutil.rmtree(folder)


def slow_steps(root: Path, cases: int, _rng: random.Random, tally: Tally) -> None:
    """Steps in which a rank waits, now and then longer than the time-out, for one that works."""
    timeout_s = 1.5
    waits_s = longest_waits_s(root, cases, timeout_s=timeout_s, launch_s=0.01)
    alarms = sorted(path.name for path in root.glob("hang-*"))
    tally.others["waits_longer_than_the_timeout"] = sum(wait_s > timeout_s for wait_s in waits_s)
    for number in range(cases):
        tally.count(f"step {number}", alarms if number < len(alarms) else [])
