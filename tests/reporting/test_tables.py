"""Tables for the terminal, comparisons and headline figures."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from arachne.core.errors import DataError
from arachne.reporting.comparison import read_comparison, strategies_from
from arachne.reporting.headlines import Headlines, headlines, percentile
from arachne.reporting.run_files import Metrics, StepMetrics
from arachne.reporting.tables import comparison_table, summary_table
from tests.reporting.made_runs import made_ledger


def printed(table, width: int = 100) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(table)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def made_headlines() -> Headlines:
    train = [
        StepMetrics(
            step=step,
            loss=1.0 - 0.1 * step,
            step_s=2.0,
            modelled_step_s=(1.8, 2.0, 2.1, 3.0)[step],
            launch_error=(0.9, 0.04, 0.06, 0.05)[step],
            idle_ratio=0.1 * step,
            tokens=1000 * (step + 1),
            tokens_per_s=400.0 * (step + 1),
            planner="arachne",
        )
        for step in range(4)
    ]
    held_out = StepMetrics(step=3, kind="validation", loss=0.75)
    metrics = Metrics(train=tuple(train), validation=(held_out,))
    return headlines(metrics, made_ledger(12), ranks=4)


def test_the_fastest_strategy_comes_first_and_ratios_are_to_arachne():
    strategies = strategies_from(
        step_s={"static-dp": 0.9, "arachne": 0.3},
        modelled_step_s={"static-dp": 0.8, "arachne": 0.25, "static-sp": 0.5},
        idle_ratio={"arachne": 0.05},
    )
    lines = printed(comparison_table(strategies))
    rows = [line for line in lines if "arachne " in line or "static" in line]
    assert "900 ms" in rows[-1]
    arachne = next(line for line in lines if "arachne" in line and "300 ms" in line)
    assert "1.00×" in arachne
    assert "5.0 %" in arachne
    assert "3.00×" in next(line for line in lines if "static-dp" in line)
    modelled_only = next(line for line in lines if "static-sp" in line)
    assert "–" in modelled_only
    assert "2.00×" in modelled_only


def test_the_names_of_the_built_in_strategies_fit_80_columns():
    names = dict.fromkeys(("arachne", "static-dp-longest-first"), 1.0)
    table = comparison_table(strategies_from(step_s=names, modelled_step_s=names, idle_ratio=names))
    assert any("static-dp-longest-first" in line for line in printed(table, width=80))


def test_a_measured_time_is_never_compared_with_a_modelled_one():
    measured, modelled = strategies_from(step_s={"a": 1.0}, modelled_step_s={"arachne": 2.0})
    assert measured.ratio_to(modelled) is None


def test_without_arachne_there_are_no_ratios():
    lines = printed(comparison_table(strategies_from(step_s={"static-dp": 0.9})))
    assert not any("1.00×" in line for line in lines)


def test_markup_in_a_strategy_name_is_shown_as_it_is():
    assert any(
        "[red]x" in line
        for line in printed(comparison_table(strategies_from(step_s={"[red]x": 1})))
    )


def test_headlines_are_medians_and_errors_are_relative_to_what_was_measured():
    figures = made_headlines()
    assert figures.num_steps == 4
    assert (figures.first_loss, figures.last_loss) == (1.0, pytest.approx(0.7))
    assert figures.recent_loss == pytest.approx(0.8)
    assert figures.validation_loss == 0.75
    assert figures.idle_ratio == pytest.approx(0.15)
    assert figures.step_s == 2.0
    assert figures.model_error == pytest.approx(0.075)
    assert figures.model_error_p95 == pytest.approx(0.5)
    assert figures.launch_error == pytest.approx(0.055)
    assert figures.tokens_per_s == pytest.approx(1000.0)
    assert figures.clips == {"kept": 6, "trimmed": 3, "rejected": 3}


def test_the_error_of_launches_is_that_of_late_since_the_model_is_corrected_meanwhile():
    rows = [StepMetrics(step=s, loss=1.0, launch_error=1.0 if s < 50 else 0.1) for s in range(60)]
    assert headlines(Metrics(train=tuple(rows)), None, None).launch_error == pytest.approx(0.1)


def test_headlines_of_nothing_are_none():
    figures = headlines(Metrics(), None, None)
    assert figures.num_steps == 0
    assert figures.first_loss is figures.step_s is figures.model_error is figures.clips is None
    assert printed(summary_table(figures)) == ["steps  0 steps"]


def test_the_summary_fits_100_columns_and_says_each_figure_once():
    lines = printed(summary_table(made_headlines()))
    assert max(len(line) for line in lines) <= 100
    text = "\n".join(lines)
    for part in (
        "4 steps on 4 ranks, planner arachne",
        "1 → 0.7",
        "15.0 % (median)",
        "5.5 % of late (median)",
        "error 7.5 % median, 50.0 % p95",
        "1,000 tokens/s (median)",
        "6 kept, 3 trimmed, 3 rejected",
    ):
        assert text.count(part) == 1, part


def test_a_percentile_is_one_of_the_values():
    assert percentile([3.0, 1.0, 2.0], 95) == 3.0
    assert percentile(list(range(1, 101)), 95) == 95
    assert percentile([7.0], 5) == 7.0


def test_a_comparison_file_is_read_strictly(tmp_path: Path):
    path = tmp_path / "comparison.json"
    assert read_comparison(path) == ()
    path.write_text('{"step_s": {"arachne": 1.0}, "idle_ratio": {"arachne": 0.1}}')
    (arachne,) = read_comparison(path)
    assert (arachne.step_s, arachne.modelled_step_s, arachne.idle_ratio) == (1.0, None, 0.1)
    path.write_text('{"steps": {}}')
    with pytest.raises(DataError, match="unknown key 'steps'; did you mean 'step_s'"):
        read_comparison(path)
