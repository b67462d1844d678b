"""`arachne train` that is asked to end, killed, or started again."""

import fcntl
import os
import shutil
import signal
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from arachne.cli.main import main
from arachne.cli.run_dir import write_resolved
from arachne.reporting.run_files import MANIFEST, read_metrics
from arachne.trainer.checkpoint_reader import newest, verified
from arachne.trainer.kept_ledger import KEPT
from tests.cli.test_train import COMMAND, ENVIRONMENT, TORCHRUN
from tests.trainer.tiny_runs import changed, make_clips, tiny_config

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(400)]  # a busy machine starts slowly

WITHIN_S = 25.0
"""What a scheduler leaves a job that it asks to end."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    return make_clips(tmp_path_factory.mktemp("stopping") / "clips")


@pytest.fixture
def run_file(dataset, tmp_path) -> Path:
    config = tiny_config(dataset, tmp_path / "run", steps=100_000, dtype="float32")
    config = changed(config, "run", ranks=2)
    config = changed(config, "checkpoint", every=3, keep=2)
    write_resolved(changed(config, "logging", trace_every=0), tmp_path / "run.toml")
    return tmp_path / "run.toml"


@pytest.fixture(autouse=True)
def not_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@contextmanager
def running(command: list[str], *words: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [*command, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ranks_of(launcher: "subprocess.Popen[str]") -> list[int]:
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text()
    return sorted(map(int, children.split()))


def wait_for(condition, process: "subprocess.Popen[str]") -> None:
    deadline_s = time.monotonic() + 150.0
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def steps_done(run_dir: Path) -> int:
    return len(read_metrics(run_dir).train) if (run_dir / "metrics.jsonl").exists() else 0


def ended(process: "subprocess.Popen[str]", within_s: float = WITHIN_S) -> tuple[int, str, str]:
    begin_s = time.monotonic()
    out, error = process.communicate(timeout=200)
    assert time.monotonic() - begin_s < within_s
    return process.returncode, out, error


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_all_processes_of_a_training_commits_a_checkpoint_and_says_which(
    run_file, number
):
    run_dir = run_file.parent / "run"
    with running(COMMAND, str(run_file)) as process:
        wait_for(lambda: steps_done(run_dir) > 4, process)
        os.killpg(process.pid, number)  # as some schedulers do, and the kernel for a terminal
        code, out, error = ended(process)
    assert (code, error) == (128 + number, "")
    assert "stopped after step " in out
    assert "planning process" not in out
    assert verified(newest(run_dir, on_skip=print)).state.step == steps_done(run_dir)


def test_a_lost_terminal_ends_a_training_with_a_checkpoint_and_a_file_shows_its_end(run_file):
    run_dir = run_file.parent / "run"
    leader, terminal = os.openpty()
    process = subprocess.Popen(
        [*COMMAND, str(run_file)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=ENVIRONMENT,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(terminal)
    os.set_blocking(leader, False)

    def has_begun() -> bool:
        with suppress(BlockingIOError):
            os.read(leader, 1 << 16)  # or it would wait for who reads it
        return steps_done(run_dir) > 4

    try:
        wait_for(has_begun, process)
        os.close(leader)
        assert process.wait(WITHIN_S) == 128 + signal.SIGHUP
    finally:
        process.kill()
        process.wait()
    assert "stopped after step" in (run_dir / "display.txt").read_text()
    assert verified(newest(run_dir, on_skip=print)).state.step == steps_done(run_dir)


def test_before_the_first_step_a_signal_ends_the_run_at_once(run_file):
    with running(COMMAND, str(run_file)) as process:
        wait_for(lambda: len(ranks_of(process)) >= 2, process)
        time.sleep(0.3)
        assert steps_done(run_file.parent / "run") == 0
        process.send_signal(signal.SIGTERM)
        code, _, error = ended(process)
    assert code == 143
    assert error == "arachne: interrupted\n"
    assert not (run_file.parent / "run" / "checkpoints").exists()


def test_a_killed_rank_under_torchrun_is_started_again_and_resumes_by_itself(run_file):
    run_dir = run_file.parent / "run"
    command = [*TORCHRUN[:-3], "--max-restarts", "1", *TORCHRUN[-3:]]
    with running(command, str(run_file), "--set", "run.steps=40") as process:
        wait_for(lambda: (run_dir / "checkpoints" / "step-000003").exists(), process)
        os.kill(ranks_of(process)[-1], signal.SIGKILL)
        code, out, error = ended(process, within_s=200.0)
    assert code == 0, error
    assert "Traceback" not in error, "the rank that was left alone says it in a line"
    assert "done: 40 steps" in out
    assert [row.step for row in read_metrics(run_dir).train] == list(range(40))
    assert verified(newest(run_dir, on_skip=print)).state.step == 40


def test_ranks_do_not_outlive_a_torchrun_that_is_killed(run_file):
    with running(TORCHRUN, str(run_file)) as process:
        wait_for(lambda: steps_done(run_file.parent / "run") > 1, process)
        ranks = ranks_of(process)
        process.kill()
        process.wait()
        deadline_s = time.monotonic() + 20.0
        while any(is_running(rank) for rank in ranks):
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
    assert len(ranks) >= 2


def is_running(pid: int) -> bool:
    """Whether a process is there, and more than a name that nobody has asked after yet."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] not in "ZX"


def test_resume_if_any_begins_and_then_goes_on_and_rescan_reads_the_dataset_again(run_file, capfd):
    run_dir = run_file.parent / "run"
    again = ["train", str(run_file), "--resume-if-any", "--ranks", "1"]
    assert main([*again, "--set", "run.steps=1"]) == 0
    before = (run_dir / MANIFEST).stat().st_mtime_ns
    assert main([*again, "--set", "run.steps=2"]) == 0
    assert [row.step for row in read_metrics(run_dir).train] == [0, 1]
    assert (run_dir / MANIFEST).stat().st_mtime_ns == before
    assert main([*again, "--rescan", "--set", "run.steps=3"]) == 0
    assert (run_dir / MANIFEST).stat().st_mtime_ns > before
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("rescans", [False, True])
def test_a_run_that_is_refused_keeps_the_ledger_of_its_clips(tmp_path, rescans, capfd):
    clips = make_clips(tmp_path / "clips")
    config = changed(tiny_config(clips, tmp_path / "run", steps=1), "run", ranks=1)
    write_resolved(config, tmp_path / "run.toml")
    assert main(["train", str(tmp_path / "run.toml")]) == 0
    ledger = (tmp_path / "run" / MANIFEST).read_bytes()
    resume = ["train", str(tmp_path / "run.toml"), "--resume", "--set", "run.steps=2"]
    # Nothing is left of what was decoded, and of the clips one (or none, where all are asked for).
    shutil.rmtree(config.data.cache)
    aside = tmp_path / "aside"
    aside.mkdir()
    lost = sorted(clips.iterdir())[: None if rescans else 1]
    for path in lost:
        path.rename(aside / path.name)
    assert main(resume + ["--rescan"] * rescans) == 2
    assert (tmp_path / "run" / MANIFEST).read_bytes() == ledger
    for path in lost:
        (aside / path.name).rename(path)
    assert main(resume) == 0
    assert not (tmp_path / "run" / KEPT).exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--resume", "--resume-if-any"], "contradict each other"),
        (["--rescan"], "--rescan is for a run that is resumed"),
    ],
)
def test_options_that_cannot_work_are_refused(run_file, options, message, capfd):
    assert main(["train", str(run_file), *options]) == 2
    assert message in capfd.readouterr().err
