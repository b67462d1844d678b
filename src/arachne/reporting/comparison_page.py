"""The page of `arachne compare`: a table of planners, and one step's timelines on one time axis."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from arachne.core.batch import Batch
from arachne.core.placed_plan import PlacedPlan
from arachne.core.trace import Trace
from arachne.reporting.chart_parts import Figure
from arachne.reporting.epoch_figures import (
    EPOCH_COLUMNS,
    EpochFigures,
    epoch_cells,
    epoch_notes,
)
from arachne.reporting.page_document import document
from arachne.reporting.page_parts import figures_table, notes_list, shape_legend
from arachne.reporting.planner_figures import COLUMNS, PlannerFigures, cells, notes
from arachne.reporting.shape_colours import shape_paints
from arachne.reporting.timeline import timeline

_SHOWN_LENGTHS = 3
"""A planner that is very slow must not press the others' timelines flat."""

_TIMES = "All times are modelled, and planning times are of this machine."


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnStep:
    """One step as one planner would run it."""

    name: str
    plan: PlacedPlan
    trace: Trace


def render_comparison(
    title: str,
    lead: str,
    figures: Sequence[PlannerFigures],
    batch: Batch,
    steps: Sequence[DrawnStep],
    epoch: Sequence[EpochFigures] = (),
    beneath: Sequence[str] = (),
) -> str:
    """A whole page.

    Args:
        title: What was compared.
        lead: One sentence beneath it.
        figures: Rows of the table, in order.
        batch: The clips of the step whose timelines are drawn.
        steps: Its timelines, from top to bottom.
        epoch: Rows of a second table, of systems that train other clips in a step.
        beneath: Sentences beneath the planners' table.
    """
    launched = {launch.cascade.bucket for step in steps for launch in step.plan.launches}
    paints = shape_paints(launched)  # encoders may run for shapes of the next batch
    lengths_s = [step.trace.iteration_s for step in steps]
    shown_s = min(max(lengths_s), _SHOWN_LENGTHS * min(lengths_s)) if steps else 0.0
    drawn: dict[str, Figure] = {}
    panels: list[str] = []
    for step in steps:
        figure = timeline([step.trace], step.plan, batch=batch, paints=paints)
        figure["layout"]["xaxis"]["range"] = [0.0, shown_s]
        drawn[f"timeline-{step.name}"] = figure
        panels.append(
            f'<div class="panel"><h3>{escape(step.name)}</h3>'
            f'<div class="chart" data-figure="timeline-{escape(step.name)}"></div></div>'
        )
    plans, traces = [step.plan for step in steps], [step.trace for step in steps]
    legend = shape_legend(paints, plans, traces, has_unknown=False)
    body = (
        f"{notes_list([*notes(figures), *epoch_notes(epoch)])}<h2>Planners</h2>"
        "<p class='why'>Simulated on the same batches. A plan with more than one phase has "
        "barriers over all GPUs; launches over the cap need more memory than a GPU has.</p>"
        f'<div class="panel">{_planners_table(figures)}{_sentences(beneath)}</div>'
        f"{_epoch_section(epoch)}"
    )
    if panels:
        body += (
            f"<h2>Step {batch.step}, planner by planner</h2>"
            "<p class='why'>One row a rank; light stretches are idle. The time axis is the same "
            f"for all, and ends at {_SHOWN_LENGTHS} times the shortest step; drag it to see "
            f"more.</p>{legend}{''.join(panels)}"
        )
    return document(title=title, lead=lead, body=body, figures=drawn, times=_TIMES)


def _planners_table(figures: Sequence[PlannerFigures]) -> str:
    """Empty where only the reference without cascades was asked for."""
    if not figures:
        return ""
    return figures_table("planner", COLUMNS, {row.name: cells(row) for row in figures})


def _sentences(sentences: Sequence[str]) -> str:
    return "".join(f"<p class='why'>{escape(sentence)}</p>" for sentence in sentences)


def _epoch_section(epoch: Sequence[EpochFigures]) -> str:
    if not epoch:
        return ""
    rows = {row.name: epoch_cells(row, epoch) for row in epoch}
    return (
        "<h2>Over an epoch</h2>"
        "<p class='why'>Systems with buckets draw their own batches, and drop the clips that fill "
        "none; the planners train the sampler's steps of the same clips. Ends of steps are "
        "counted, so look at the clips of a step too.</p>"
        f'<div class="panel">{figures_table("system", EPOCH_COLUMNS, rows)}</div>'
    )
