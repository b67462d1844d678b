"""Figures of systems over an epoch, and of a pipeline for reference: how they read."""

from arachne.reporting.comparison_page import render_comparison
from arachne.reporting.epoch_figures import (
    EPOCH_COLUMNS,
    EpochFigures,
    epoch_cells,
    epoch_notes,
)
from arachne.reporting.pipeline_figures import PipelineFigures
from tests.reporting.made_runs import HOSTILE, made_batch

OURS = EpochFigures(
    name="arachne",
    gpu_seconds_per_token=4e-5,
    tokens=7_500_000,
    clips_trained=1200,
    clips_dropped=0,
    steps=16,
    idle_ratio=0.008,
    cap_violations=0,
)
BUCKETS = EpochFigures(
    name="opensora_buckets",
    gpu_seconds_per_token=5e-5,
    tokens=7_000_000,
    clips_trained=1100,
    clips_dropped=100,
    steps=20,
    idle_ratio=0.25,
    cap_violations=3,
)
FAILED = EpochFigures(name="videosys_dcp", failure=f"clip {HOSTILE!r} needs 128 GB")
EMPTY = EpochFigures(name="adaptiveload_buckets", clips_dropped=7)


def test_figures_read_in_the_order_of_the_columns():
    row = dict(zip(EPOCH_COLUMNS, epoch_cells(BUCKETS, [OURS, BUCKETS]), strict=True))

    assert row == {
        "GPU-s /Mtoken": "50",
        "× arachne": "1.250",
        "trained": "1,100",
        "dropped": "100",
        "steps": "20",
        "clips /step": "55",
        "idle": "25.0 %",
        "over cap": "3",
    }
    assert epoch_cells(BUCKETS, [BUCKETS])[1] == "–"


def test_systems_that_train_nothing_say_why():
    rows = [OURS, FAILED, EMPTY]

    assert set(epoch_cells(FAILED, rows)) == {"–"}
    assert epoch_cells(EMPTY, rows)[2:4] == ("0", "7")
    assert epoch_notes(rows) == [
        f"videosys_dcp: {FAILED.failure}",
        "adaptiveload_buckets: the epoch has too few clips to fill one step; take more with "
        "--epoch",
    ]


def test_the_page_has_the_epochs_table_its_notes_and_the_pipeline_as_text():
    pipeline = PipelineFigures(name="gpipe", failure=HOSTILE)
    text = render_comparison(
        "t", "l", [], made_batch(0), [], epoch=[OURS, FAILED, EMPTY], beneath=[pipeline.text]
    )

    assert "<h2>Over an epoch</h2>" in text
    assert '<tr class="ours"><td>arachne</td><td class="number">40</td>' in text
    assert "too few clips to fill one step" in text
    assert "gpipe (for reference): " in text
    assert HOSTILE not in text
    assert "Over an epoch" not in render_comparison("t", "l", [], made_batch(0), [])


def test_a_pipeline_is_one_sentence():
    pipeline = PipelineFigures(
        name="gpipe",
        step_s=12.5,
        ratio=1.25,
        num_stages=4,
        bubble_ratio=0.314,
        ideal_bubble_ratio=0.2,
        recomputed_steps=1,
    )
    assert pipeline.text == (
        "gpipe (for reference: layers over GPUs, no cascades): mean step 12.50 s, 1.250 × arachne; "
        "4 stages, idle 31.4 % before the step's end, 20.0 % if its micro-batches were equal; "
        "activations computed again in 1 step"
    )
    alone = PipelineFigures(
        name="gpipe", step_s=1.0, num_stages=2, bubble_ratio=0.5, ideal_bubble_ratio=0.5
    )
    assert "× arachne" not in alone.text
