"""torchrun that loses a machine, and gets one: the run goes on, on fewer or more ranks."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import groupby
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from arachne.cli.run_dir import is_same_job, note_job, write_resolved
from arachne.reporting.run_files import read_metrics, read_plans
from arachne.trainer.checkpoint_files import checkpoints_dir, step_folders
from arachne.trainer.checkpoint_reader import newest, verified
from tests.cli.test_train import ENVIRONMENT
from tests.trainer.tiny_runs import changed, make_clips, tiny_config


@pytest.fixture
def run_dir(tmp_path) -> Path:
    config = tiny_config(
        make_clips(tmp_path / "clips"), tmp_path / "run", steps=100_000, dtype="float32"
    )
    config = changed(config, "checkpoint", every=3, keep=2)
    write_resolved(changed(config, "logging", trace_every=0), tmp_path / "run.toml")
    return tmp_path / "run"


@pytest.fixture
def meeting_port() -> Iterator[int]:
    """Where the machines meet; on a cluster it is a machine that stays."""
    server = TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
    )
    yield server.port
    del server


def machine(run_file: Path, port: int) -> "subprocess.Popen[bytes]":
    """One of one to three, with a rank each."""
    conf = (
        "is_host=false,join_timeout=120,last_call_timeout=5,keep_alive_interval=1,"
        "keep_alive_max_attempt=3"
    )
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:3"),
        *("--nproc-per-node", "1", "--max-restarts", "5", "--rdzv-backend", "c10d"),
        *("--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "a job"),
        *("--rdzv-conf", conf, "--local-addr", "127.0.0.1"),
        *("-m", "arachne", "train", str(run_file)),
    ]
    # torch 2.13 shares a store of the first machine, which those that come later never find.
    environment = ENVIRONMENT | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with (run_file.parent / f"said-{time.monotonic_ns()}").open("wb") as said:
        return subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env=environment)


def children(process: int) -> list[int]:
    try:
        return [*map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())]
    except OSError:
        return []


def lose(each: "subprocess.Popen[bytes]") -> None:
    """A machine without power: its processes end at once."""
    for process in (each.pid, *children(each.pid)):
        os.kill(process, signal.SIGKILL)
    each.wait()


def wait_for(condition: Callable[[], bool], run_dir: Path) -> None:
    deadline_s = time.monotonic() + 150.0
    while not condition():
        said = [path.read_text() for path in run_dir.parent.glob("said-*")]
        assert time.monotonic() < deadline_s, said
        time.sleep(0.1)


def committed_by(run_dir: Path) -> int:
    """Ranks that wrote the newest checkpoint; 0 while there is none."""
    for folder in step_folders(checkpoints_dir(run_dir)):
        if folder.suffix == "":
            return len(list(folder.path.glob("shard-*")))
    return 0


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.timeout(600)
def test_a_run_goes_on_by_itself_after_a_machine_was_lost_and_after_one_came(run_dir, meeting_port):
    run_file = run_dir.parent / "run.toml"
    machines = [machine(run_file, meeting_port) for _ in range(3)]
    try:
        wait_for(lambda: committed_by(run_dir) == 3, run_dir)
        lose(machines.pop(1))
        wait_for(lambda: committed_by(run_dir) == 2, run_dir)
        machines.append(machine(run_file, meeting_port))
        wait_for(lambda: committed_by(run_dir) == 3, run_dir)
        for each in machines:
            each.send_signal(signal.SIGTERM)
        for each in machines:
            each.wait(60.0)
    finally:
        for each in machines:
            if each.poll() is None:
                lose(each)
    steps = [row.step for row in read_metrics(run_dir).train]
    assert steps == list(range(len(steps)))
    state = verified(newest(run_dir, on_skip=print)).state
    assert state.step == len(steps)
    plans, _ = read_plans(run_dir)
    sizes = [plans[step].world_size for step in steps]
    assert [size for size, _ in groupby(sizes)] == [3, 2, 3]


def test_a_run_knows_the_job_that_began_it_and_a_nameless_one_is_none(tmp_path):
    assert not is_same_job(tmp_path, "a job")
    note_job(tmp_path, "a job")
    assert is_same_job(tmp_path, "a job")
    assert not is_same_job(tmp_path, "another")
    note_job(tmp_path, "")
    assert not is_same_job(tmp_path, "")
