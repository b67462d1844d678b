"""The report of a run: what its page shows, section by section."""

from dataclasses import dataclass
from html import escape
from pathlib import Path

from arachne.core.bucket import Bucket
from arachne.core.trace import Trace
from arachne.core.units import count_text
from arachne.reporting.chart_parts import Figure
from arachne.reporting.charts import (
    balance_figure,
    comparison_figure,
    idle_figure,
    loss_figure,
    prediction_figure,
    step_time_figure,
)
from arachne.reporting.chosen_steps import ChosenStep, chosen_steps
from arachne.reporting.modelled_trace import modelled_trace
from arachne.reporting.page_document import document
from arachne.reporting.page_parts import (
    figures_table,
    headline_cards,
    ledger_summary,
    ledger_table,
    notes_list,
    samples_grid,
    shape_legend,
    strategies_table,
)
from arachne.reporting.planned_figures import PLANNED_COLUMNS, planned_cells, planned_text
from arachne.reporting.report_data import ReportData, read_report_data
from arachne.reporting.shape_colours import Paint, shape_paints
from arachne.reporting.timeline import timeline
from arachne.reporting.watching_charts import (
    bucket_loss_figure,
    noise_level_figure,
    unevenness_figure,
    utilisation_figure,
)

_TIMES = "Times are wall-clock seconds on the ranks."
_MODELLED_TIMES = "All times are modelled; nothing was run."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chart:
    """A figure with the words above it."""

    name: str
    title: str
    why: str
    figure: Figure | None


def render_report(source: Path | ReportData) -> str:
    """A whole report page.

    Args:
        source: A run directory, or what was read from one.

    Raises:
        DataError: `source` is a folder that is not a run directory.
    """
    data = source if isinstance(source, ReportData) else read_report_data(source)
    steps = chosen_steps(data)
    paints = shape_paints(_buckets(data))
    figures: dict[str, Figure] = {}
    body = [
        headline_cards(data.headlines),
        notes_list(data.notes),
        _planned_section(data),
        _timeline_section(data, steps, paints, figures),
        _balance_section(data, figures),
        _model_section(data, paints, figures),
        _learning_section(data, paints, figures),
        _strategies_section(data, figures),
        _samples_section(data),
        _ledger_section(data),
    ]
    return document(
        title=data.title,
        lead=_lead(data),
        body="".join(body),
        figures=figures,
        times=_MODELLED_TIMES if data.planned else _TIMES,
    )


def _buckets(data: ReportData) -> set[Bucket]:
    """Shapes of all launches that the page draws."""
    drawn = data.traces or data.plans
    plans = [plan for step, plan in data.plans.items() if step in drawn]
    return {launch.cascade.bucket for plan in plans for launch in plan.launches}


def _planned_section(data: ReportData) -> str:
    if not data.planned:
        return ""
    rows = {str(figures.step): planned_cells(figures) for figures in data.planned}
    return (
        "<h2>Steps</h2><p class='why'>The makespan ends with a step's last launch; reduction and "
        "optimizer follow. No plan of the same clips is shorter than the bound.</p>"
        f'<div class="panel">{figures_table("step", PLANNED_COLUMNS, rows)}'
        f"<p class='why'>{escape(planned_text(data.planned))}</p></div>"
    )


def _timeline_section(
    data: ReportData,
    steps: tuple[ChosenStep, ...],
    paints: dict[Bucket, Paint],
    figures: dict[str, Figure],
) -> str:
    if not steps:
        return (
            "<h2>Where the time went</h2><p class='why'>This run stored neither traces nor plans, "
            "so there is no timeline; set logging.trace_every to 1 or more.</p>"
        )
    modelled_s = data.modelled_step_s
    drawn: list[Trace] = []
    for chosen in steps:
        step, plan = chosen.step, data.plans.get(chosen.step)
        traces = [data.traces[step]] if step in data.traces else []
        if plan is not None:
            traces.append(modelled_trace(plan, modelled_s.get(step)))
        drawn += traces
        figures[f"step-{step}"] = timeline(
            traces, plan, batch=data.batches.get(step), paints=paints
        )
    default = next((c for c in steps if c.reason == "typical"), steps[-1])
    has_unknown = any(step not in data.plans for step in data.traces)
    plans = [data.plans[chosen.step] for chosen in steps if chosen.step in data.plans]
    legend = shape_legend(paints, plans, drawn, has_unknown=has_unknown)
    pressed = [_step_button(chosen, is_pressed=chosen is default) for chosen in steps]
    buttons = f'<div class="steps" role="group" aria-label="step">{"".join(pressed)}</div>'
    return (
        f"<h2>{'Where the time would go' if data.planned else 'Where the time went'}</h2>"
        f'<p class="why">{escape(_timeline_why(data))}</p>'
        f'<div class="panel">{buttons if len(steps) > 1 else ""}{legend}'
        f'<div class="chart" id="timeline" data-figure="step-{default.step}"></div></div>'
    )


def _timeline_why(data: ReportData) -> str:
    bars = "One row a rank. A bar is one launch, shape ×clips @degree; light stretches are idle."
    if data.planned:
        return bars
    if not data.traces:
        return "One row a rank, as planned: this run has no measured traces."
    text = bars
    if data.plans:
        text += " What was measured lies above what the plan promised, on the same axis."
    if data.num_traced_steps > len(data.traces):
        text += f" Drawn from {len(data.traces)} of {data.num_traced_steps:,} traced steps."
    return text


def _step_button(chosen: ChosenStep, *, is_pressed: bool) -> str:
    reason = f"<small>{escape(chosen.reason)}</small>" if chosen.reason else ""
    return (
        f'<button type="button" data-shows="step-{chosen.step}" '
        f'aria-pressed="{str(is_pressed).lower()}">step {chosen.step}{reason}</button>'
    )


def _section(title: str, charts: list[_Chart], figures: dict[str, Figure]) -> str:
    """Charts side by side; a chart without a figure is left out, and a section without charts."""
    panels: list[str] = []
    for chart in charts:
        if chart.figure is not None:
            figures[chart.name] = chart.figure
            panels.append(
                f'<div class="panel"><h3>{escape(chart.title)}</h3>'
                f'<p class="why">{escape(chart.why)}</p>'
                f'<div class="chart" data-figure="{chart.name}"></div></div>'
            )
    rows = [
        f'<div class="pair">{"".join(panels[i : i + 2])}</div>' for i in range(0, len(panels), 2)
    ]
    return f"<h2>{escape(title)}</h2>{''.join(rows)}" if panels else ""


def _balance_section(data: ReportData, figures: dict[str, Figure]) -> str:
    traces = list(data.traces.values())
    charts = [
        _Chart(
            name="idle",
            title="Idle ratio of each step",
            why="The share of GPU time in which nothing was computed or moved.",
            figure=idle_figure(data.metrics),
        ),
        _Chart(
            name="balance",
            title="Balance between ranks",
            why=f"Mean over {count_text(len(traces), 'traced step')}; "
            "even blue columns are a fair share of the work.",
            figure=balance_figure(traces),
        ),
        _Chart(
            name="utilisation",
            title="Model FLOPs utilisation",
            why="The model's own FLOPs against the matmul rate of the cluster at the run's start.",
            figure=utilisation_figure(data.metrics),
        ),
        _Chart(
            name="unevenness",
            title="Unevenness and waiting for data",
            why="Deviation of the ranks' FLOP rates over their mean; rank time spent on loading.",
            figure=unevenness_figure(data.metrics),
        ),
    ]
    return _section("Balance", charts, figures)


def _model_section(
    data: ReportData, paints: dict[Bucket, Paint], figures: dict[str, Figure]
) -> str:
    charts = [
        _Chart(
            name="prediction",
            title="Predicted against measured launches",
            why="One point a launch, coloured by shape; points on the dotted line were right.",
            figure=prediction_figure(data.traces, data.plans, paints),
        ),
        _Chart(
            name="step-time",
            title="Step time",
            why="What the cost model promised for the whole step, and what it took.",
            figure=step_time_figure(data.metrics),
        ),
    ]
    return _section("Cost model", charts, figures)


def _learning_section(
    data: ReportData, paints: dict[Bucket, Paint], figures: dict[str, Figure]
) -> str:
    train, validation = data.metrics.train, data.metrics.validation
    newest = "Running means over the newest 64 clips of each."
    same_noise = "The same clips and the same noise every time."
    charts = [
        _Chart(
            name="loss",
            title="Loss",
            why="It depends on the clips and the seed, not on how the work was spread over ranks.",
            figure=loss_figure(data.metrics),
        ),
        _Chart(
            name="validation-noise",
            title="Validation loss by noise level",
            why=same_noise,
            figure=noise_level_figure(validation),
        ),
        _Chart(
            name="loss-noise",
            title="Training loss by noise level",
            why=newest + " Quarters of the level, from clean to noise.",
            figure=noise_level_figure(train),
        ),
        _Chart(
            name="loss-shape",
            title="Training loss by shape",
            why=newest + " At most the eight largest shapes.",
            figure=bucket_loss_figure(train, paints),
        ),
        _Chart(
            name="validation-shape",
            title="Validation loss by shape",
            why=same_noise,
            figure=bucket_loss_figure(validation, paints),
        ),
    ]
    return _section("Learning", charts, figures)


def _strategies_section(data: ReportData, figures: dict[str, Figure]) -> str:
    if not data.strategies:
        return ""
    figure = comparison_figure(data.strategies)
    chart = ""
    if figure is not None:
        figures["comparison"] = figure
        chart = '<div class="chart" data-figure="comparison"></div>'
    return (
        "<h2>Strategies</h2>"
        "<p class='why'>The same batches, spread over the ranks in other ways.</p>"
        f'<div class="panel">{chart}{strategies_table(data.strategies)}</div>'
    )


def _samples_section(data: ReportData) -> str:
    return f"<h2>Samples</h2>{samples_grid(data.samples)}" if data.samples else ""


def _ledger_section(data: ReportData) -> str:
    if data.ledger is None:
        return ""
    return (
        f"<h2>Clips</h2><p class='why'>{escape(ledger_summary(data.ledger))}</p>"
        f'<div class="panel">{ledger_table(data.ledger)}</div>'
    )


def _lead(data: ReportData) -> str:
    figures = data.headlines
    if figures.num_steps:
        text = count_text(figures.num_steps, "training step")
    else:
        text = count_text(len(data.plans), "planned step")
    if figures.ranks is not None:
        text += f" on {count_text(figures.ranks, 'rank')}"
    return text + (f", planned by {figures.planner}." if figures.planner else ".")
