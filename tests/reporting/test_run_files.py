"""The files of a run directory."""

import json
import pickle
from pathlib import Path

import pytest

from arachne.core.errors import DataError
from arachne.reporting.json_lines import steps_in
from arachne.reporting.run_files import (
    METRICS,
    PLANS,
    RunWriter,
    StepMetrics,
    rank_log_path,
    read_batches,
    read_metrics,
    read_plans,
)
from tests.reporting.made_runs import made_batch, made_logs, made_plan


def test_what_is_written_is_read(tmp_path: Path):
    writer = pickle.loads(pickle.dumps(RunWriter(run_dir=tmp_path / "new" / "run")))
    batch = made_batch(3)
    plan = made_plan(batch)
    row = StepMetrics(step=3, loss=0.5, step_s=1.5, idle_ratio=0.1, tokens=100, planner="arachne")
    writer.write_metrics(row)
    writer.write_plan(plan)
    writer.write_batch(batch)
    for log in made_logs(plan):
        writer.write_rank_log(log)
    run_dir = writer.run_dir
    assert read_metrics(run_dir).train == (row,)
    assert read_plans(run_dir) == ({3: plan}, ())
    assert read_batches(run_dir) == ({3: batch}, ())
    assert rank_log_path(run_dir, 2).name == "rank-00002.jsonl"
    assert all(rank_log_path(run_dir, rank).exists() for rank in range(4))


def test_a_plan_is_one_line_with_the_same_digest(tmp_path: Path):
    plan = made_plan(made_batch(0))
    RunWriter(run_dir=tmp_path).write_plan(plan)
    assert (tmp_path / PLANS).read_bytes().count(b"\n") == 1
    assert read_plans(tmp_path)[0][0].digest == plan.digest


def test_rows_of_a_resumed_run_win_and_steps_are_in_order(tmp_path: Path):
    writer = RunWriter(run_dir=tmp_path)
    for step, loss in ((0, 1.0), (1, 0.9), (2, 0.8), (1, 0.7), (2, 0.6)):
        writer.write_metrics(StepMetrics(step=step, loss=loss))
    writer.write_metrics(StepMetrics(step=1, kind="validation", loss=5.0))
    metrics = read_metrics(tmp_path)
    assert [(row.step, row.loss) for row in metrics.train] == [(0, 1.0), (1, 0.7), (2, 0.6)]
    assert [(row.step, row.loss) for row in metrics.validation] == [(1, 5.0)]


def test_a_resumed_run_drops_the_steps_that_it_does_again(tmp_path: Path):
    writer = RunWriter(run_dir=tmp_path)
    for step in range(4):
        batch = made_batch(step)
        plan = made_plan(batch)
        writer.write_plan(plan)
        writer.write_batch(batch)
        writer.write_metrics(StepMetrics(step=step, loss=1.0))
        writer.write_metrics(StepMetrics(step=step + 1, kind="validation", loss=2.0))
        for log in made_logs(plan):
            writer.write_rank_log(log)
    with (tmp_path / METRICS).open("a") as file:
        file.write('{"step": 9, "lo')
    for rank in (0, 1):
        writer.go_on_from(2, rank)
    metrics = read_metrics(tmp_path)
    assert [row.step for row in metrics.train] == [0, 1]
    assert [row.step for row in metrics.validation] == [1, 2], "the last is of the same weights"
    assert metrics.notes == ()
    assert set(read_plans(tmp_path)[0]) == set(read_batches(tmp_path)[0]) == {0, 1}
    logs = [steps_in(rank_log_path(tmp_path, rank)) for rank in range(4)]
    assert logs == [(0, 1), (0, 1), (0, 1, 2, 3), (0, 1, 2, 3)], "each rank cuts its own"
    assert not list(tmp_path.rglob("*.partial"))


def test_a_run_without_files_goes_on_from_nothing(tmp_path: Path):
    RunWriter(run_dir=tmp_path).go_on_from(0, 0)
    assert list(tmp_path.iterdir()) == []


def test_losses_by_bucket_and_noise_level_are_read_back(tmp_path: Path):
    row = StepMetrics(step=0, loss=1.0, bucket_losses={"8x8x1": 0.5}, sigma_losses={"q1": 2.0})
    RunWriter(run_dir=tmp_path).write_metrics(row)
    assert read_metrics(tmp_path).train == (row,)


def test_a_loss_that_is_not_finite_comes_back_as_none(tmp_path: Path):
    writer = RunWriter(run_dir=tmp_path)
    writer.write_metrics(StepMetrics(step=0, loss=float("nan"), grad_norm=float("inf")))
    json.loads((tmp_path / METRICS).read_text(), parse_constant=pytest.fail)
    (row,) = read_metrics(tmp_path).train
    assert row.loss is None
    assert row.grad_norm is None


def test_a_row_with_an_unknown_key_is_refused_with_the_nearest_name(tmp_path: Path):
    (tmp_path / METRICS).write_text('{"step": 0, "loss": 1.0, "step_sec": 2.0}\n')
    with pytest.raises(DataError, match="unknown key 'step_sec'; did you mean 'step_s'"):
        read_metrics(tmp_path)
