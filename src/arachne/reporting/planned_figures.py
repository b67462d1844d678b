"""Planned steps in figures, and how a table and a page say them."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from arachne.core.units import seconds_text
from arachne.reporting.tables import share_text


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFigures:
    """One planned step; all times are modelled.

    Attributes:
        num_tokens: Tokens of all clips.
        num_launches: Launches of the plan.
        degrees: That the plan uses, ascending.
        makespan_s: To the end of the last launch.
        lower_bound_s: No plan of these clips is shorter.
        step_s: Makespan, reduction and optimizer.
        idle_ratio: Of the whole step.
    """

    step: int
    num_tokens: int
    num_launches: int
    degrees: tuple[int, ...]
    makespan_s: float
    lower_bound_s: float
    step_s: float
    idle_ratio: float


PLANNED_COLUMNS = (
    "tokens",
    "launches",
    "degrees",
    "makespan",
    "bound",
    "× bound",
    "whole step",
    "idle",
)
"""Heads of the figures' columns, after the step."""


def planned_cells(figures: PlannedFigures) -> tuple[str, ...]:
    """One text for each of `PLANNED_COLUMNS`."""
    return (
        f"{figures.num_tokens:,}",
        str(figures.num_launches),
        ",".join(map(str, figures.degrees)),
        seconds_text(figures.makespan_s),
        seconds_text(figures.lower_bound_s),
        f"{figures.makespan_s / figures.lower_bound_s:.3f}",
        seconds_text(figures.step_s),
        share_text(figures.idle_ratio),
    )


def planned_text(planned: Sequence[PlannedFigures]) -> str:
    """All steps in one line: `mean step 1.52 s, 48,889 tokens/s`."""
    mean_s = fmean(figures.step_s for figures in planned)
    tokens_per_s = fmean(figures.num_tokens for figures in planned) / mean_s
    return f"mean step {seconds_text(mean_s)}, {tokens_per_s:,.0f} tokens/s"
