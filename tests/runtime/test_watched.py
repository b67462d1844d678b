"""A watched run that is only slow is left alone; without our launcher it says its own end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from arachne.core.errors import LostRankError
from arachne.runtime.launcher import run_ranks
from arachne.runtime.watched import watched
from arachne.runtime.world import World
from tests.runtime.planted_hangs import CULPRIT, STEP
from tests.runtime.rank_groups import children
from tests.runtime.slow_steps import longest_waits_s

pytestmark = pytest.mark.distributed

TIMEOUT_S = 1.5
WORLD_SIZE = 4


@pytest.fixture(autouse=True)
def nothing_is_left_running():
    before = children()
    yield
    assert children() <= before


SCRIPT = """
import sys
from pathlib import Path
from arachne.runtime.watched import collective_timeout_s
from arachne.runtime.world import join_world
from tests.runtime.planted_hangs import hang_in_a_launch

timeout_s = float(sys.argv[2])
world = join_world("cpu", collective_timeout_s(timeout_s))
hang_in_a_launch(world, Path(sys.argv[1]), timeout_s, "all_gather", "be_stopped")
"""


def test_under_torchrun_the_watchdog_says_it_and_the_run_ends_with_an_error(tmp_path):
    script, reports, temporary = (tmp_path / name for name in ("script.py", "run", "tmp"))
    script.write_text(SCRIPT)
    reports.mkdir()
    temporary.mkdir()
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(WORLD_SIZE), str(script), str(reports), str(TIMEOUT_S)),
        ],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(temporary),
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode != 0
    said = [line for line in ended.stderr.splitlines() if line.startswith("arachne: ")]
    assert len(said) == 1, ended.stderr
    assert said[0].startswith(f"arachne: rank {CULPRIT} has not answered for ")
    report = (reports / f"hang-{STEP + 1}.txt").read_text()
    assert "be_stopped" in report.partition(f"\nstacks of rank {CULPRIT}, ")[2]
    assert not list(temporary.glob("arachne-watched-*"))


def test_hundreds_of_steps_and_a_wait_beyond_the_time_out_are_no_hang(tmp_path):
    waits_s = longest_waits_s(tmp_path, 300, launch_s=0.0005, timeout_s=TIMEOUT_S, slow_every=300)
    assert len(waits_s) == 300
    assert waits_s[0] > 1.1 * TIMEOUT_S
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_thousand_slow_steps_are_no_hang(tmp_path):
    waits_s = longest_waits_s(tmp_path, 1000, launch_s=0.06, timeout_s=TIMEOUT_S)
    assert len(waits_s) == 1000
    assert waits_s[19] > 1.1 * TIMEOUT_S, "twenty of them longer than the time-out"
    assert not list(tmp_path.iterdir())


PAUSED = """
import sys, time
from pathlib import Path
from arachne.runtime.launcher import run_ranks
from arachne.runtime.watched import watched

def work(world, folder):
    with watched(world, timeout_s=2.0, report_dir=folder) as progress:
        end_s = time.monotonic() + 6.0
        while time.monotonic() < end_s:
            progress.change("compute")
            (folder / str(world.rank)).touch()
            for _ in range(20):  # a pause does not count as time worked
                time.sleep(0.05)

if __name__ == "__main__":
    run_ranks(2, work, (Path(sys.argv[1]),))
"""


def test_a_pause_of_all_processes_is_no_hang(tmp_path):
    # Case: Ctrl-Z, and `fg` after lunch.
    script, folder = tmp_path / "script.py", tmp_path / "run"
    script.write_text(PAUSED)
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    launcher = subprocess.Popen(
        [sys.executable, str(script), str(folder)], env=environment, start_new_session=True
    )
    try:
        while len(list(folder.iterdir())) < 2:
            time.sleep(0.05)
        time.sleep(1.0)  # the watchdog looks by now
        os.killpg(launcher.pid, signal.SIGSTOP)
        time.sleep(3.0)
        os.killpg(launcher.pid, signal.SIGCONT)
        assert launcher.wait(timeout=60.0) == 0
    finally:
        if launcher.poll() is None:
            os.killpg(launcher.pid, signal.SIGKILL)
    assert not list(folder.glob("hang*"))


def leave_early(world: World, folder: Path) -> int:
    with watched(world, timeout_s=0.5, report_dir=folder):
        time.sleep(1.2 if world.rank else 0.0)
    return world.rank


def test_waiting_before_and_after_the_training_is_no_hang(tmp_path):
    assert run_ranks(2, leave_early, (tmp_path,)) == [0, 1]


def fail_early(world: World, folder: Path) -> None:
    """The first error counts, which is rank 1's."""
    has_failed = folder / "has failed"
    try:
        with watched(world, timeout_s=5.0, report_dir=folder):
            if world.rank:
                raise LostRankError("in its own words")
            while not has_failed.exists():
                time.sleep(0.05)
            raise KeyError("never seen")
    finally:
        has_failed.touch()


def test_an_error_ends_the_watch_and_arrives_as_itself(tmp_path):
    with pytest.raises(LostRankError, match=r"^in its own words$"):
        run_ranks(2, fail_early, (tmp_path,))
