"""Systems that train different clips in a step, against each other over an epoch."""

from collections.abc import Sequence
from dataclasses import dataclass

from arachne.core.units import percent_text
from arachne.reporting.comparison import REFERENCE


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFigures:
    """One system on the clips of an epoch; None where it trained none of them.

    Attributes:
        name: The system's.
        gpu_seconds_per_token: GPUs × seconds of all steps, their ends included, over `tokens`.
        tokens: Of the clips that were trained.
        clips_trained: Clips of the epoch that some step trained.
        clips_dropped: Clips of the epoch that none did.
        steps: Optimizer steps.
        idle_ratio: Over all steps.
        cap_violations: Launches that need more memory than a GPU has.
        failure: Why it found no plan; empty if it did.
    """

    name: str
    gpu_seconds_per_token: float | None = None
    tokens: int = 0
    clips_trained: int = 0
    clips_dropped: int = 0
    steps: int = 0
    idle_ratio: float | None = None
    cap_violations: int | None = None
    failure: str = ""


EPOCH_COLUMNS = (
    "GPU-s /Mtoken",
    "× arachne",
    "trained",
    "dropped",
    "steps",
    "clips /step",
    "idle",
    "over cap",
)
"""Heads of the figures' columns, after the system's name; the first is per million tokens."""


def epoch_cells(figures: EpochFigures, all_figures: Sequence[EpochFigures]) -> tuple[str, ...]:
    """One text for each of `EPOCH_COLUMNS`; ratios are to `arachne`'s row in `all_figures`."""
    if figures.gpu_seconds_per_token is None or figures.idle_ratio is None:
        counts = ("–", "–") if figures.failure else ("0", str(figures.clips_dropped))
        return ("–", "–", *counts, "–", "–", "–", "–")
    reference = next((row for row in all_figures if row.name == REFERENCE), None)
    ratio = "–"
    if reference is not None and reference.gpu_seconds_per_token:
        ratio = f"{figures.gpu_seconds_per_token / reference.gpu_seconds_per_token:.3f}"
    return (
        f"{1e6 * figures.gpu_seconds_per_token:.3g}",
        ratio,
        f"{figures.clips_trained:,}",
        f"{figures.clips_dropped:,}",
        f"{figures.steps:,}",
        f"{figures.clips_trained / figures.steps:.3g}",
        percent_text(figures.idle_ratio, 1),
        "–" if figures.cap_violations is None else str(figures.cap_violations),
    )


def epoch_notes(figures: Sequence[EpochFigures]) -> list[str]:
    """A line for each system that trained nothing."""
    notes = [f"{row.name}: {row.failure}" for row in figures if row.failure]
    notes += [
        f"{row.name}: the epoch has too few clips to fill one step; take more with --epoch"
        for row in figures
        if not row.failure and not row.steps
    ]
    return notes
