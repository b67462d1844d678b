"""A run in which one rank stops answering ends, with a report that names it."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from arachne.core.errors import LostRankError
from arachne.core.strict_json import to_json
from arachne.runtime.launcher import run_ranks
from arachne.runtime.watchdog import WatchOrder
from arachne.runtime.watched import collective_timeout_s
from tests.runtime.planted_hangs import (
    COLLECTIVES,
    CULPRIT,
    HANGING_LAUNCH,
    STEP,
    hang_in_a_launch,
)
from tests.runtime.rank_groups import children

pytestmark = pytest.mark.distributed

TIMEOUT_S = 1.0
WORLD_SIZE = 4


@pytest.fixture(autouse=True)
def nothing_is_left_running():
    before = children()
    yield
    assert children() <= before


def hung(folder: Path, operation: str, hang: str) -> tuple[str, str]:
    """The error of a run that hangs, and its report."""
    with pytest.raises(LostRankError) as caught:
        run_ranks(
            WORLD_SIZE,
            hang_in_a_launch,
            (folder, TIMEOUT_S, operation, hang),
            timeout_s=collective_timeout_s(TIMEOUT_S),
        )
    took_s = time.monotonic() - float((folder / "hangs since").read_text())
    assert took_s < 2 * TIMEOUT_S + 1.0, "a second for a loaded machine"
    return str(caught.value), (folder / f"hang-{STEP + 1}.txt").read_text()


def check_error(error: str, folder: Path, doing: str) -> None:
    start = (
        rf"^rank {CULPRIT} has not answered for [12]\.\d s.*, in launch {HANGING_LAUNCH} \(dit of "
    )
    assert re.search(rf"{start}.*'clip 2', on ranks 0-3\) of step {STEP + 1}, {doing}; ", error), (
        error
    )
    assert f"; report: {folder / f'hang-{STEP + 1}.txt'}; start again with --resume-if-any" in error


@pytest.mark.parametrize("operation", sorted(COLLECTIVES))
def test_a_rank_that_does_not_come_to_a_collective_is_named_with_its_launch(tmp_path, operation):
    error, report = hung(tmp_path, operation, "sleep_forever")
    check_error(error, tmp_path, "computing")
    assert error.startswith(report.splitlines()[0].partition("; report")[0])
    assert re.search(rf"ranks 0-1, 3 wait: rank \d waits in {operation}, number \d of", error), (
        error
    )
    for rank in range(WORLD_SIZE):
        assert f"\nrank {rank}, process " in report
        _, _, stacks = report.partition(f"\nstacks of rank {rank}, ")
        assert "hang_in_a_launch" in stacks.partition("\nstacks of rank ")[0]
    stacks_of_culprit = report.partition(f"\nstacks of rank {CULPRIT}, ")[2]
    assert "sleep_forever" in stacks_of_culprit.partition("\nstacks of rank ")[0]
    assert "sleep_forever" not in report.partition(f"\nstacks of rank {CULPRIT}, ")[0]


@pytest.mark.parametrize(
    ("hang", "doing", "on_stack"),
    [
        ("be_stopped", "computing", "be_stopped"),
        ("hold_the_interpreter", "computing", "hold_the_interpreter"),
        ("wait_for_a_clip", "waiting for its clips", "stuck_read"),
    ],
)
def test_it_is_named_however_it_hangs(tmp_path, hang, doing, on_stack):
    error, report = hung(tmp_path, "all_to_all", hang)
    check_error(error, tmp_path, doing)
    assert ("(its process is stopped)" in error) == (hang == "be_stopped")
    stacks = report.partition(f"\nstacks of rank {CULPRIT}, ")[2].partition("\nstacks of ")[0]
    assert on_stack in stacks


def test_a_watchdog_whose_parent_is_already_gone_ends_at_once(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    order = WatchOrder(
        folder=str(tmp_path),
        ranks=(0,),
        timeout_s=60.0,
        report_dir=str(tmp_path),
        node=None,
        parent=gone.pid,
        has_launcher=True,
    )
    command = [sys.executable, "-m", "arachne.runtime.watchdog", to_json(order)]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0
