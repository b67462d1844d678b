"""Logs of a run on a disk that refuses them: the run ends with advice, or says so and goes on."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from arachne.cli.run_logs import RunLogs
from arachne.core.errors import ConfigError
from arachne.reporting.run_files import METRICS, SAMPLES, StepMetrics, read_metrics
from arachne.runtime.world import World
from arachne.trainer.checkpoint_files import checkpoints_dir
from tests.forbidden_files import forbidden
from tests.trainer.tiny_runs import changed, tiny_config


def logs_of(run_dir: Path, said: list[str], **logging: Any) -> RunLogs:
    config = changed(tiny_config(run_dir, run_dir), "logging", **logging)
    return RunLogs(config, cast(World, SimpleNamespace(rank=0, size=1)), said.append)


def refuse(run_dir: Path) -> None:
    """As a full disk does: no line can be added."""
    (run_dir / METRICS).unlink(missing_ok=True)
    (run_dir / METRICS).mkdir()


def test_a_log_that_cannot_be_written_ends_the_run_with_advice_that_can_be_followed(tmp_path):
    logs = logs_of(tmp_path, [])
    refuse(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot be written: .* no earlier checkpoint; .* again"):
        logs.write(StepMetrics(step=0, loss=1.0))
    (checkpoints_dir(tmp_path) / "step-000001").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"checkpoints are untouched; .* go on with --resume"):
        logs.write(StepMetrics(step=0, loss=1.0))


@pytest.mark.parametrize("tensorboard", [False, True])
def test_where_it_was_asked_for_a_run_goes_on_without_its_logs_and_says_so_once(
    tmp_path, tensorboard
):
    said: list[str] = []
    logs = logs_of(tmp_path, said, on_error="continue", tensorboard=tensorboard)
    logs.begin(0)
    refuse(tmp_path)
    for step in range(3):
        logs.write(StepMetrics(step=step, loss=1.0))
    assert len(said) == 1
    assert "training goes on, its logs lack what comes until it can be" in said[0]
    (tmp_path / METRICS).rmdir()
    logs.write(StepMetrics(step=3, loss=1.0))
    refuse(tmp_path)
    logs.write(StepMetrics(step=4, loss=1.0))
    assert len(said) == 2, "said again after it went well"
    (tmp_path / METRICS).rmdir()
    logs.write(StepMetrics(step=5, loss=2.0))
    assert [row.step for row in read_metrics(tmp_path).train] == [5]
    logs.close()


@pytest.mark.parametrize("name", [METRICS, "traces", "metrics.jsonl.partial"])
def test_a_log_that_is_refused_is_named_with_what_helps(tmp_path, name):
    logs = logs_of(tmp_path, [])
    logs.write(StepMetrics(step=0, loss=1.0))
    (tmp_path / "traces").mkdir()
    if name.endswith(".partial"):
        (tmp_path / name).mkdir()
        words, place = "Is a directory", nullcontext()
    else:
        words, place = "Permission denied", forbidden(tmp_path / name)
    with place, pytest.raises(ConfigError, match=rf"{words}: '{tmp_path}/{name}") as caught:
        logs.begin(1)
    fix = "move it away" if name.endswith(".partial") else "let this user read and write it"
    assert f"; {fix} or change run.dir, and start again" in str(caught.value)


def test_samples_that_may_not_be_looked_at_are_told_or_drawn_again(tmp_path):
    (tmp_path / SAMPLES).mkdir()
    with forbidden(tmp_path / SAMPLES):
        with pytest.raises(ConfigError, match=rf"Permission denied: '{tmp_path}/{SAMPLES}"):
            logs_of(tmp_path, []).is_sampled(4)
        assert not logs_of(tmp_path, [], on_error="continue").is_sampled(4)


class FullAtTheEnd:
    def close(self) -> None:
        raise OSError(28, "No space left on device")


def test_a_log_whose_end_cannot_be_written_hides_no_other_error(tmp_path):
    said: list[str] = []
    logs = logs_of(tmp_path, said)
    logs._tensorboard = cast(Any, FullAtTheEnd())  # pyright: ignore[reportPrivateUsage]
    logs.close()
    assert said == [
        f"{tmp_path}: the end of a log cannot be written: [Errno 28] No space left on device"
    ]
