"""Rows of metrics as named numbers."""

from arachne.reporting.run_files import StepMetrics
from arachne.reporting.scalars import scalar_step, scalars_of


def test_a_training_row_is_grouped_and_holds_what_is_known():
    row = StepMetrics(
        step=4,
        loss=0.5,
        lr=1e-4,
        mfu=0.4,
        peak_memory_bytes=2.5e9,
        grad_norm=float("nan"),
        rejected=3,
        left_out=1,
        bucket_losses={"832x480x81": 0.7},
        sigma_losses={"q1": 0.9},
    )
    assert scalars_of(row) == {
        "train/loss": 0.5,
        "train/lr": 1e-4,
        "speed/mfu": 0.4,
        "memory/peak_gb": 2.5,
        "data/rejected": 3,
        "data/left_out": 1,
        "train/loss_sigma_q1": 0.9,
        "train/loss/832x480x81": 0.7,
    }


def test_a_validation_row_has_its_own_group_and_a_step_says_how_many_are_done():
    row = StepMetrics(step=5, kind="validation", loss=0.5, sigma_losses={"q2": 0.4})
    assert scalars_of(row) == {"validation/loss": 0.5, "validation/loss_sigma_q2": 0.4}
    assert scalar_step(row) == scalar_step(StepMetrics(step=4, loss=1.0)) == 5
