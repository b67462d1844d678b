"""Planners against each other on the same modelled batches: figures and how they read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from arachne.core.units import percent_text, seconds_text


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerFigures:
    """One planner on all batches of a comparison; None where it found no plan for some batch.

    Attributes:
        name: The planner's.
        step_s: Mean of the simulated step, reduction and optimizer included.
        ratio: Its mean step over that of `arachne`; None too where `arachne` did not take part.
        bound_geomean: Geometric mean of makespan over lower bound.
        bound_worst: The largest of those.
        idle_ratio: Mean.
        plan_s: Median of the seconds that planning took.
        cap_violations: Launches, or packs, that need more memory than a GPU has; all batches.
        num_phases: Most phases of a plan: 1 has no barrier inside the step.
        failure: Why it found no plan; empty if it did.
    """

    name: str
    step_s: float | None = None
    ratio: float | None = None
    bound_geomean: float | None = None
    bound_worst: float | None = None
    idle_ratio: float | None = None
    plan_s: float | None = None
    cap_violations: int | None = None
    num_phases: int | None = None
    failure: str = ""


_ROUNDING = 5e-4
"""What a table of three decimals does not show."""

COLUMNS = ("mean step", "× arachne", "× bound", "over cap", "worst", "idle", "plan time", "phases")
"""Heads of the figures' columns, after the planner's name; a narrow terminal leaves out the last
ones first.
"""


def cells(figures: PlannerFigures) -> tuple[str, ...]:
    """One text for each of `COLUMNS`."""
    return (
        _text(figures.step_s, seconds_text),
        _text(figures.ratio, "{:.3f}".format),
        _text(figures.bound_geomean, "{:.3f}".format),
        _text(figures.cap_violations, str),
        _text(figures.bound_worst, "{:.3f}".format),
        _text(figures.idle_ratio, lambda share: percent_text(share, 1)),
        _text(figures.plan_s, seconds_text),
        _text(figures.num_phases, str),
    )


def notes(figures: Sequence[PlannerFigures]) -> list[str]:
    """A line for each planner that found no plan, and one about those that are below the bound."""
    lines = [f"{row.name}: {row.failure}" for row in figures if row.failure]
    below = [
        row.name
        for row in figures
        if row.bound_geomean is not None and row.bound_geomean < 1.0 - _ROUNDING
    ]
    if below:
        lines.append(
            f"below 1 × bound: {', '.join(below)}; the bound holds within the memory cap and for "
            "the degrees of plans: 2^k, 3·2^k, the whole cluster and, of a small one, divisors"
        )
    return lines


def _text(value: float | None, text: Callable[[float], str]) -> str:
    return "–" if value is None else text(value)
