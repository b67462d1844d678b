"""A row of metrics as named numbers, in the groups that TensorBoard and Weights & Biases show."""

from math import isfinite

from arachne.reporting.run_files import StepMetrics

_GIGABYTE = 1e9


def scalar_step(row: StepMetrics) -> int:
    """Where a row lies on the axis of steps done, which training and validation share."""
    return row.step + 1 if row.kind == "train" else row.step


def scalars_of(row: StepMetrics) -> dict[str, float]:
    """The finite numbers of a row, by group and name: `train/loss`, or `validation/loss`."""
    if row.kind == "validation":
        return _finite({"validation/loss": row.loss} | _losses("validation", row))
    figures = {
        "train/loss": row.loss,
        "train/grad_norm": row.grad_norm,
        "train/lr": row.lr,
        "speed/step_s": row.step_s,
        "speed/period_s": row.period_s,
        "speed/modelled_step_s": row.modelled_step_s,
        "speed/tokens_per_s": row.tokens_per_s,
        "speed/clips_per_s": row.clips_per_s,
        "speed/mfu": row.mfu,
        "speed/idle_ratio": row.idle_ratio,
        "speed/flop_rate_cv": row.flop_rate_cv,
        "speed/load_share": row.load_share,
        "speed/launch_error": row.launch_error,
        "memory/peak_gb": None
        if row.peak_memory_bytes is None
        else row.peak_memory_bytes / _GIGABYTE,
        "data/trimmed": row.trimmed,
        "data/rejected": row.rejected,
        "data/left_out": row.left_out,
        "data/skipped_steps": row.skipped_steps,
    }
    return _finite(figures | _losses("train", row))


def _losses(group: str, row: StepMetrics) -> dict[str, float | None]:
    """`loss_sigma_q1` beside the loss, and `loss/832x480x81` beneath it."""
    by_sigma = {f"{group}/loss_sigma_{name}": v for name, v in (row.sigma_losses or {}).items()}
    by_bucket = {f"{group}/loss/{name}": v for name, v in (row.bucket_losses or {}).items()}
    return {**by_sigma, **by_bucket}


def _finite(figures: dict[str, float | None]) -> dict[str, float]:
    return {name: v for name, v in figures.items() if v is not None and isfinite(v)}
