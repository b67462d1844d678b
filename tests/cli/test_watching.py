"""What a run shows and writes while it trains: rows, event files, samples, the display."""

import io
import json
import shutil
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from arachne.cli import training_display
from arachne.cli.main import main
from arachne.cli.run_dir import write_resolved
from arachne.cli.training_display import TrainingDisplay, figures_text
from arachne.core.clip import Clip
from arachne.core.ledger import Ledger, LedgerRow
from arachne.reporting import wandb_log
from arachne.reporting.report_data import read_report_data
from arachne.reporting.run_files import METRICS, StepMetrics, read_metrics
from tests.reporting.test_tensorboard import events
from tests.trainer.tiny_runs import changed, make_clips, tiny_config

ROW = StepMetrics(
    step=4,
    loss=0.51234,
    grad_norm=1.5,
    step_s=2.0,
    idle_ratio=0.123,
    tokens_per_s=12345.6,
    clips_per_s=4.0,
    mfu=0.0123,
    load_share=0.25,
    peak_memory_bytes=2.5e9,
    launch_error=0.5,
    time_left_s=90.0,
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    return make_clips(tmp_path_factory.mktemp("watched") / "clips")


@pytest.fixture
def run_file(dataset, tmp_path) -> Path:
    config = tiny_config(dataset, tmp_path / "run", dtype="float32")
    config = changed(config, "run", ranks=2)
    config = changed(config, "checkpoint", every=2)
    config = changed(
        config,
        "validation",
        every=2,
        noises=2,
        clips=3,
        sample_every=3,
        prompts=("a ball", "the sea"),
        sample_shape="32x32x5",
        sample_steps=1,
    )
    write_resolved(config, tmp_path / "run.toml")
    return tmp_path / "run.toml"


@pytest.mark.distributed
def test_a_run_and_its_continuation_write_each_figure_once(run_file, capfd):
    assert main(["train", str(run_file)]) == 0
    run_dir = run_file.parent / "run"
    said = capfd.readouterr().out
    assert "MFU is against 0.08 TFLOP/s per rank, of cpux2" in said
    assert "after step 2: validation loss" in said
    row = read_metrics(run_dir).train[2]
    known = (row.tokens_per_s, row.clips_per_s, row.mfu, row.peak_memory_bytes, row.idle_ratio)
    assert all(figure is not None and figure > 0.0 for figure in known)
    assert row.clips == 4
    for each in read_metrics(run_dir).train:  # a rate is over all seconds that training took
        assert None not in (each.tokens, each.step_s, each.period_s)
        assert each.period_s > each.step_s
        assert each.tokens_per_s == pytest.approx(each.tokens / each.period_s)
    assert (row.trimmed, row.rejected) == (2, 0)
    assert row.load_share is not None
    assert 0.0 <= row.load_share < 1.0
    assert row.time_left_s == 0.0
    assert row.sigma_losses
    assert set(row.sigma_losses) <= {"q1", "q2", "q3", "q4"}
    assert row.bucket_losses
    assert "64x48x9" in row.bucket_losses
    held_out = read_metrics(run_dir).validation[-1]
    assert held_out.sigma_losses is not None
    assert list(held_out.sigma_losses) == ["q1", "q2"]

    shutil.rmtree(run_dir / "checkpoints" / "step-000003")
    again = ["train", str(run_file), "--resume", "--ranks", "1", "--set", "run.steps=4"]
    assert main(again) == 0
    rows = [json.loads(line) for line in (run_dir / METRICS).read_text().splitlines()]
    counts = Counter((row["kind"], row["step"]) for row in rows)
    assert counts == {
        **{("train", step): 1 for step in range(4)},
        **{("validation", step): 1 for step in (0, 2, 4)},
    }, "step 2 was done again, and the validation loss after 2 steps was known"
    first, second = events(run_dir / "tensorboard")
    assert {event.step for event in first if event.HasField("summary")} == {0, 1, 2, 3}
    assert second[1].step == 3
    assert {event.step for event in second if event.HasField("summary")} == {3, 4}
    tags = {value.tag for event in first for value in event.summary.value}
    assert {
        "train/loss",
        "train/loss/64x48x9",
        "speed/mfu",
        "speed/idle_ratio",
        "memory/peak_gb",
        "data/rejected",
        "validation/loss",
        "validation/loss_sigma_q1",
        "samples/0",
        "samples/1",
    } <= tags

    for step in (0, 3, 4):
        names = {path.name for path in (run_dir / "samples" / f"step-00000{step}").iterdir()}
        assert names == {"0.mp4", "1.mp4", "sheet.png"}
    shown = [sample.name for sample in read_report_data(run_dir).samples]
    assert shown == ["after 4 steps", "after 3 steps", "before the first step"]


@pytest.mark.distributed
def test_without_tensorboard_no_event_file_is_written(run_file, capfd):
    options = ["--set", "logging.tensorboard=false", "--set", "validation.sample_every=0"]
    assert main(["train", str(run_file), "--set", "run.steps=1", *options]) == 0
    run_dir = run_file.parent / "run"
    assert not (run_dir / "tensorboard").exists()
    assert not (run_dir / "samples").exists()
    assert [row.step for row in read_metrics(run_dir).train] == [0]


def test_a_missing_wandb_is_said_before_anything_starts(run_file, capfd, monkeypatch):
    monkeypatch.setattr(wandb_log, "find_spec", lambda name: None)
    assert main(["train", str(run_file), "--set", "logging.wandb=films"]) == 2
    assert "pip install 'arachne[wandb]'" in capfd.readouterr().err
    assert not (run_file.parent / "run").exists()


def test_a_line_holds_all_figures_and_a_bar_those_that_fit_80_columns():
    assert figures_text(ROW, is_short=False) == (
        "loss 0.5123  norm 1.500  2.00 s  12,346 tokens/s  4 clips/s  MFU 1.2 %  idle 12 %  "
        "data wait 25 %  2.5 GB  launch times off by 50 %  1 min 30 s left"
    )
    short = figures_text(ROW, is_short=True)
    assert short == (
        "loss 0.5123  norm 1.500  2.00 s  12,346 tokens/s  MFU 1.2 %  idle 12 %  2.5 GB"
    )
    assert len(short) <= 80


def test_what_was_not_measured_is_not_shown():
    assert figures_text(StepMetrics(step=0, loss=None), is_short=False) == "loss none  norm none"


def test_a_terminal_shows_a_bar_with_the_figures_beneath(tmp_path, monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(
        training_display,
        "Console",
        lambda **options: Console(**options | {"file": shown}, force_terminal=True, width=80),
    )
    config = tiny_config(tmp_path, tmp_path, steps=8)
    with TrainingDisplay(config, is_shown=True) as display:
        display.progress("encoding clips", 1, 3)
        display.step(ROW)
        display.step(replace(ROW, step=5, idle_ratio=None, loss=0.25))
        display.validation(replace(ROW, kind="validation", sigma_losses={"q1": 1.0, "q2": 2.0}))
    text = shown.getvalue()
    assert "training" in text
    assert "6/8" in text
    assert "idle 12 %" in text[text.index("loss 0.2500") :], "that of the newest traced step"
    assert "12,346 tokens/s" in text
    assert "(from the least noise to the most: 1.0000, 2.0000)" in text


def test_rejected_clips_are_listed_up_to_twenty(tmp_path, capsys):
    rows = tuple(
        LedgerRow(
            clip=Clip(path=f"{number}.mp4", caption="a"),
            status="rejected",
            arithmetic="",
            reason="too short",
            bucket=None,
            num_tokens=0,
            content=f"{number:064x}",
        )
        for number in range(23)
    )
    with TrainingDisplay(tiny_config(tmp_path, tmp_path), is_shown=True) as display:
        display.started(Ledger(rows=rows), 2)
    lines = capsys.readouterr().out.splitlines()
    assert "0 clips on 2 ranks: 0 kept whole, 0 trimmed, 23 rejected" in lines
    assert sum("too short" in line for line in lines) == 20
    assert lines[-1].startswith("rejected 3 more clips; ")
