"""Which steps a report draws as timelines, and why."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median_low

from arachne.reporting.modelled_trace import modelled_trace
from arachne.reporting.report_data import ReportData
from arachne.reporting.timeline import num_bars

MAX_STEPS = 8
_MAX_BARS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenStep:
    """A step with the reason for showing it; the reason is empty for one that only fills up."""

    step: int
    reason: str


def chosen_steps(data: ReportData) -> tuple[ChosenStep, ...]:
    """At most eight steps in order: first, last, slowest, typical, worst predicted, then others.

    Steps with a measured trace are taken where there are any, else planned ones. On very many
    ranks fewer steps are taken, so that the page stays quick; at least one is.
    """
    drawable = sorted(data.traces or data.plans)
    if not drawable:
        return ()
    reasons: dict[int, str] = {}
    num_drawn = 0
    for step, reason in _wishes(data, drawable):
        if step in reasons:
            continue
        num_drawn += _bars(data, step)
        if reasons and (len(reasons) == MAX_STEPS or num_drawn > _MAX_BARS):
            break
        reasons[step] = reason
    return tuple(ChosenStep(step=step, reason=reasons[step]) for step in sorted(reasons))


def _wishes(data: ReportData, drawable: list[int]) -> Iterator[tuple[int, str]]:
    rows = {row.step: row for row in data.metrics.train}
    length_s = {step: trace.iteration_s for step, trace in data.traces.items()}
    if not length_s:
        length_s = {step: plan.makespan_s for step, plan in data.plans.items()}
    error = {
        step: abs(row.modelled_step_s - row.step_s) / row.step_s
        for step in drawable
        if (row := rows.get(step)) and row.modelled_step_s is not None and row.step_s
    }
    yield drawable[0], "first"
    yield drawable[-1], "last"
    yield max(drawable, key=lambda step: length_s[step]), "slowest"
    typical_s = median_low(length_s.values())
    yield next(step for step in drawable if length_s[step] == typical_s), "typical"
    if error:
        yield max(error, key=lambda step: error[step]), "worst predicted"
    for i in range(1, MAX_STEPS):
        yield drawable[i * (len(drawable) - 1) // MAX_STEPS], ""
    for step in drawable:
        yield step, ""


def _bars(data: ReportData, step: int) -> int:
    measured = data.traces.get(step)
    plan = data.plans.get(step)
    bars = 0 if measured is None else num_bars(measured)
    return bars if plan is None else bars + num_bars(modelled_trace(plan))
