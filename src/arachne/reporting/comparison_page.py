"""The page of `arachne compare`: a table of planners, and one step's timelines on one time axis."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from arachne.core.batch import Batch
from arachne.core.placed_plan import PlacedPlan
from arachne.core.trace import Trace
from arachne.reporting.charts import Figure
from arachne.reporting.comparison import REFERENCE
from arachne.reporting.page_document import document
from arachne.reporting.page_parts import notes_list, shape_legend
from arachne.reporting.planner_figures import COLUMNS, PlannerFigures, cells, failures
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
) -> str:
    """A whole page.

    Args:
        title: What was compared.
        lead: One sentence beneath it.
        figures: Rows of the table, in order.
        batch: The clips of the step whose timelines are drawn.
        steps: Its timelines, from top to bottom.
    """
    paints = shape_paints(clip.bucket for clip in batch.clips)
    lengths_s = [step.trace.iteration_s for step in steps]
    shown_s = min(max(lengths_s), _SHOWN_LENGTHS * min(lengths_s)) if steps else 0.0
    drawn: dict[str, Figure] = {}
    panels: list[str] = []
    for step in steps:
        figure = timeline([step.trace], step.plan, batch=batch, paints=paints)
        figure["layout"]["xaxis"]["range"] = [0.0, 1e3 * shown_s]
        drawn[f"timeline-{step.name}"] = figure
        panels.append(
            f'<div class="panel"><h3>{escape(step.name)}</h3>'
            f'<div class="chart" data-figure="timeline-{escape(step.name)}"></div></div>'
        )
    legend = shape_legend(paints, has_unknown=False, has_measured=False)
    body = (
        f"{notes_list(failures(figures))}<h2>Planners</h2>"
        "<p class='why'>Simulated on the same batches. A plan with more than one phase has "
        "barriers over all GPUs; launches over the cap need more memory than a GPU has.</p>"
        f'<div class="panel">{_table(figures)}</div>'
        f"<h2>Step {batch.step}, planner by planner</h2>"
        "<p class='why'>One row a rank; light stretches are idle. The time axis is the same for "
        f"all, and ends at {_SHOWN_LENGTHS} times the shortest step; drag it to see more.</p>"
        f"{legend}"
        f"{''.join(panels)}"
    )
    return document(title=title, lead=lead, body=body, figures=drawn, times=_TIMES)


def _table(figures: Sequence[PlannerFigures]) -> str:
    rows: list[str] = []
    for row in figures:
        numbers = "".join(f'<td class="number">{escape(cell)}</td>' for cell in cells(row))
        ours = ' class="ours"' if row.name == REFERENCE else ""
        rows.append(f"<tr{ours}><td>{escape(row.name)}</td>{numbers}</tr>")
    heads = "".join(f'<th class="number">{escape(head)}</th>' for head in COLUMNS)
    return (
        f'<div class="scroll"><table><thead><tr><th>planner</th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
