"""Tables for the terminal; importing this file loads rich's tables and nothing heavier."""

from rich.markup import escape
from rich.table import Table

from arachne.core.units import bytes_text, count_text, percent_text, seconds_text
from arachne.reporting.comparison import Strategy, reference_of
from arachne.reporting.headlines import Headlines

_NOTHING = "–"


def comparison_table(strategies: tuple[Strategy, ...]) -> Table:
    """Strategies against each other, a row each, in the given order; ratios are to `arachne`."""
    reference = reference_of(strategies)
    table = Table(title="Step time of each strategy on the same batches", title_justify="left")
    table.add_column("strategy", overflow="fold")
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("modelled", justify="right", no_wrap=True)
    table.add_column("idle ratio", justify="right", no_wrap=True)
    table.add_column("× arachne", justify="right", no_wrap=True)
    for strategy in strategies:
        ratio = strategy.ratio_to(reference)
        table.add_row(
            escape(strategy.name),
            duration_text(strategy.step_s),
            duration_text(strategy.modelled_step_s),
            share_text(strategy.idle_ratio),
            _NOTHING if ratio is None else f"{ratio:.2f}×",
            style="bold" if strategy is reference else None,
        )
    return table


def summary_table(figures: Headlines) -> Table:
    """A run's headline figures, one a row; figures that the run did not record are left out."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold", max_width=78)
    for label, text in summary_lines(figures):
        table.add_row(label, escape(text))
    return table


def summary_lines(figures: Headlines) -> list[tuple[str, str]]:
    """Label and text of each headline figure that the run recorded."""
    lines = [("steps", _steps_text(figures))]
    if figures.first_loss is not None and figures.last_loss is not None:
        lines.append(("loss", f"{figures.first_loss:.4g} → {figures.last_loss:.4g}"))
    if figures.validation_loss is not None:
        lines.append(("validation loss", f"{figures.validation_loss:.4g}"))
    if figures.idle_ratio is not None:
        lines.append(("idle ratio", f"{share_text(figures.idle_ratio)} (median)"))
    if figures.step_s is not None:
        lines.append(("step time", f"{seconds_text(figures.step_s)} (median)"))
    if figures.modelled_step_s is not None:
        lines.append(("modelled", _modelled_text(figures)))
    if figures.launch_error is not None:
        lines.append(("launch error", f"{share_text(figures.launch_error)} of late (median)"))
    if figures.tokens_per_s is not None:
        lines.append(("throughput", f"{figures.tokens_per_s:,.0f} tokens/s (median)"))
    lines += _machine_lines(figures)
    if figures.clips is not None:
        parts = [f"{number:,} {status}" for status, number in figures.clips.items()]
        lines.append(("clips", ", ".join(parts)))
    return lines


def _machine_lines(figures: Headlines) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    if figures.mfu is not None:
        lines.append(("utilisation", f"{share_text(figures.mfu)} of the matmul rate (median)"))
    if figures.peak_memory_bytes is not None:
        lines.append(("peak memory", f"{bytes_text(figures.peak_memory_bytes)} on one rank"))
    return lines


def _steps_text(figures: Headlines) -> str:
    text = count_text(figures.num_steps, "step")
    if figures.ranks is not None:
        text += f" on {count_text(figures.ranks, 'rank')}"
    return text if figures.planner is None else f"{text}, planner {figures.planner}"


def _modelled_text(figures: Headlines) -> str:
    text = duration_text(figures.modelled_step_s)
    if figures.model_error is None:
        return text
    return (
        f"{text}, error {share_text(figures.model_error)} median, "
        f"{share_text(figures.model_error_p95)} p95"
    )


def duration_text(seconds: float | None) -> str:
    """A duration, or a dash."""
    return _NOTHING if seconds is None else seconds_text(seconds)


def share_text(share: float | None) -> str:
    """A share of 1 as per cent with one decimal, or a dash."""
    return _NOTHING if share is None else percent_text(share, 1)
