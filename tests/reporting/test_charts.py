"""The charts of the page."""

import plotly.graph_objects as go
import pytest

from arachne.core.rank_log import trace_from_logs
from arachne.core.trace import Span, Trace
from arachne.reporting.charts import (
    balance_figure,
    comparison_figure,
    idle_figure,
    loss_figure,
    prediction_figure,
    step_time_figure,
)
from arachne.reporting.comparison import strategies_from
from arachne.reporting.run_files import Metrics, StepMetrics
from arachne.reporting.shape_colours import shape_paints
from tests.reporting.made_runs import made_batch, made_logs, made_plan


def made_rows(num_steps: int) -> Metrics:
    return Metrics(
        train=tuple(
            StepMetrics(
                step=step,
                loss=None if step == 3 else 1.0 / (step + 1),
                step_s=0.5,
                modelled_step_s=0.4,
                idle_ratio=0.1,
            )
            for step in range(num_steps)
        )
    )


def test_plotly_accepts_every_property_of_every_chart():
    plans = {step: made_plan(made_batch(step)) for step in range(3)}
    traces = {step: trace_from_logs(made_logs(plan)) for step, plan in plans.items()}
    paints = shape_paints(clip.bucket for clip in made_batch(0).clips)
    metrics = made_rows(40)
    figures = [
        loss_figure(metrics),
        idle_figure(metrics),
        step_time_figure(metrics),
        balance_figure(list(traces.values())),
        prediction_figure(traces, plans, paints),
        comparison_figure(strategies_from(step_s={"arachne": 1.0}, modelled_step_s={"b": 2.0})),
    ]
    for figure in figures:
        assert figure is not None
        assert go.Figure(figure).data


def test_a_run_without_figures_has_no_charts():
    nothing = Metrics()
    assert loss_figure(nothing) is None
    assert idle_figure(nothing) is None
    assert step_time_figure(nothing) is None
    assert balance_figure([]) is None
    assert prediction_figure({}, {}, {}) is None
    assert comparison_figure(strategies_from(idle_ratio={"arachne": 0.1})) is None


def test_every_axis_has_a_title_and_times_have_a_unit():
    for figure in (loss_figure(made_rows(9)), step_time_figure(made_rows(9))):
        assert figure is not None
        assert figure["layout"]["xaxis"]["title"]["text"] == "step"
        assert figure["layout"]["yaxis"]["title"]["text"] in {"loss", "step time (s)"}


def test_a_step_whose_loss_was_not_finite_is_no_point():
    figure = loss_figure(made_rows(6))
    assert figure is not None
    assert figure["data"][0]["x"] == [0, 1, 2, 4, 5]


def test_long_runs_show_their_running_mean():
    assert [line["name"] for line in loss_figure(made_rows(29))["data"]] == ["training"]
    names = [line["name"] for line in loss_figure(made_rows(60))["data"]]
    assert names == ["training", "mean of 5 steps"]


def test_a_very_long_run_draws_few_points_and_keeps_its_last():
    rows = Metrics(train=tuple(StepMetrics(step=s, loss=1.0, idle_ratio=0.1) for s in range(9004)))
    steps = idle_figure(rows)["data"][0]["x"]
    assert len(steps) < 2100
    assert steps[0] == 0
    assert steps[-1] == 9003


def test_balance_is_the_mean_over_steps_and_says_what_kind_of_idle():
    def trace(step: int, busy_s: float) -> Trace:
        spans = (
            Span(rank=0, kind="load", start_s=0.0, end_s=0.1),
            Span(rank=0, kind="compute", start_s=0.1, end_s=0.1 + busy_s, launch=0),
            Span(rank=1, kind="wait", start_s=0.0, end_s=0.2),
        )
        return Trace(step=step, planner="p", world_size=2, is_measured=True, spans=spans)

    figure = balance_figure([trace(0, 0.2), trace(1, 0.4)])
    assert figure is not None
    columns = {bar["name"]: bar["y"] for bar in figure["data"]}
    assert columns["busy"] == pytest.approx([300.0, 0.0])
    assert columns["waiting for data"] == pytest.approx([100.0, 0.0])
    assert columns["waiting for other ranks"] == pytest.approx([0.0, 200.0])


def test_each_launch_is_a_point_of_predicted_against_measured():
    plan = made_plan(made_batch(0))
    trace = trace_from_logs(made_logs(plan))
    figure = prediction_figure({0: trace}, {0: plan}, {})
    assert figure is not None
    line, *clouds = figure["data"]
    assert line["x"] == line["y"]
    points = sorted(p for cloud in clouds for p in zip(cloud["x"], cloud["y"], strict=True))
    expected = sorted(
        (1e3 * launch.duration_s, 1e3 * (extent[1] - extent[0]))
        for index, launch in enumerate(plan.launches)
        if (extent := trace.launch_interval_s(index))
    )
    assert len(points) == len(plan.launches)
    for point, wanted in zip(points, expected, strict=True):
        assert point == pytest.approx(wanted, rel=1e-4)
