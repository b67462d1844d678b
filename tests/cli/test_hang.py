"""`arachne train` when one of its ranks stops answering."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from arachne.cli.run_dir import write_resolved
from arachne.reporting.run_files import read_metrics
from tests.cli.test_train import COMMAND, ENVIRONMENT
from tests.trainer.tiny_runs import changed, make_clips, tiny_config

TIMEOUT_S = 5.0


def ranks_of(launcher: "subprocess.Popen[str]") -> list[int]:
    """Its processes in the order of their start."""
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text()
    return sorted(map(int, children.split()))


@pytest.mark.distributed
def test_a_stopped_rank_ends_the_run_in_one_line_with_a_report(tmp_path):
    dataset = make_clips(tmp_path / "clips")
    config = tiny_config(dataset, tmp_path / "run", dtype="float32", steps=100_000)
    run = changed(config, "run", ranks=2, timeout_s=TIMEOUT_S)
    write_resolved(run, tmp_path / "run.toml")
    launcher = subprocess.Popen(
        [*COMMAND, str(tmp_path / "run.toml")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    try:
        deadline_s = time.monotonic() + 90.0
        metrics = tmp_path / "run" / "metrics.jsonl"
        while not (metrics.exists() and len(read_metrics(tmp_path / "run").train) > 2):
            assert time.monotonic() < deadline_s
            assert launcher.poll() is None
            time.sleep(0.1)
        os.kill(ranks_of(launcher)[1], signal.SIGSTOP)
        stopped_s = time.monotonic()
        assert launcher.stderr is not None
        # Python's own resource tracker may speak before us: a killed rank left it semaphores.
        line = next(line for line in launcher.stderr if line.startswith("arachne: "))
        assert time.monotonic() - stopped_s < 2 * TIMEOUT_S
        launcher.communicate(timeout=60.0)
    finally:
        launcher.kill()
        launcher.communicate()
    assert launcher.returncode == 2
    assert line.startswith("arachne: rank 1 has not answered for ")
    assert "(its process is stopped), in " in line
    (path,) = (tmp_path / "run").glob("hang-*.txt")
    assert f"; report: {path}; start again with --resume-if-any to go on" in line
    report = path.read_text()
    for rank in (0, 1):
        stacks = report.partition(f"\nstacks of rank {rank}, ")[2].partition("\nstacks of ")[0]
        assert "in train_rank" in stacks
