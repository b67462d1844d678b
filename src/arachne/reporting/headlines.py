"""The figures of a whole run that fit in one glance."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import mean, median

from arachne.core.ledger import Ledger
from arachne.reporting.run_files import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Headlines:
    """A run in figures; None where the run recorded nothing that would tell.

    Attributes:
        num_steps: Training steps with a row of metrics.
        ranks: Ranks of the newest plan or trace.
        planner: Who planned the last step.
        first_loss: Training loss of the first step.
        last_loss: Training loss of the last step.
        recent_loss: Mean of the last tenth of the steps, at least 3, so that one batch counts less.
        validation_loss: The newest validation loss.
        idle_ratio: Median over the steps.
        step_s: Median of the measured step time.
        modelled_step_s: Median of the modelled step time.
        model_error: Median of |modelled − measured| / measured over the steps.
        model_error_p95: 95th percentile of the same.
        launch_error: Median of |promised / measured − 1| over launches, by step; of the last tenth
            of the steps, at least 10, since the cost model is corrected as the run goes on.
        tokens_per_s: Median over the steps.
        mfu: Model FLOPs utilisation, median over the steps.
        peak_memory_bytes: Of the rank and step that needed most.
        clips: Clips of the ledger by status.
    """

    num_steps: int
    ranks: int | None
    planner: str | None
    first_loss: float | None
    last_loss: float | None
    recent_loss: float | None
    validation_loss: float | None
    idle_ratio: float | None
    step_s: float | None
    modelled_step_s: float | None
    model_error: float | None
    model_error_p95: float | None
    launch_error: float | None
    tokens_per_s: float | None
    mfu: float | None
    peak_memory_bytes: float | None
    clips: dict[str, int] | None


def headlines(metrics: Metrics, ledger: Ledger | None, ranks: int | None) -> Headlines:
    """Sum a run up."""
    train = metrics.train
    losses = [row.loss for row in train if row.loss is not None]
    held_out = [row.loss for row in metrics.validation if row.loss is not None]
    errors = [
        abs(row.modelled_step_s - row.step_s) / row.step_s
        for row in train
        if row.modelled_step_s is not None and row.step_s
    ]
    return Headlines(
        num_steps=len(train),
        ranks=ranks,
        planner=train[-1].planner if train else None,
        first_loss=losses[0] if losses else None,
        last_loss=losses[-1] if losses else None,
        recent_loss=mean(losses[-max(3, len(losses) // 10) :]) if losses else None,
        validation_loss=held_out[-1] if held_out else None,
        idle_ratio=_median([row.idle_ratio for row in train]),
        step_s=_median([row.step_s for row in train]),
        modelled_step_s=_median([row.modelled_step_s for row in train]),
        model_error=_median(errors),
        model_error_p95=percentile(errors, 95) if errors else None,
        launch_error=_median([row.launch_error for row in train[-max(10, len(train) // 10) :]]),
        tokens_per_s=_median([row.tokens_per_s for row in train]),
        mfu=_median([row.mfu for row in train]),
        peak_memory_bytes=max(
            (row.peak_memory_bytes for row in train if row.peak_memory_bytes is not None),
            default=None,
        ),
        clips=ledger.counts if ledger is not None else None,
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` per cent of the values do not exceed."""
    return sorted(values)[max(0, ceil(len(values) * share / 100) - 1)]
