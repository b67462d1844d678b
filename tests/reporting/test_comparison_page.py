"""The page of planners against each other."""

import json
import re
from dataclasses import replace

from arachne.core.bucket import Bucket
from arachne.reporting.comparison_page import DrawnStep, render_comparison
from arachne.reporting.modelled_trace import modelled_trace
from arachne.reporting.planner_figures import COLUMNS, PlannerFigures, cells, notes
from tests.reporting.made_runs import HOSTILE, made_batch, made_plan

GOOD = PlannerFigures(
    name="arachne",
    step_s=0.25,
    ratio=1.0,
    bound_geomean=1.0125,
    bound_worst=1.25,
    idle_ratio=0.125,
    plan_s=0.002,
    cap_violations=0,
    num_phases=1,
)
FAILED = PlannerFigures(name="lb_mini", failure=f"clip {HOSTILE!r} needs 128 GB")


def test_figures_read_in_the_order_of_the_columns():
    row = dict(zip(COLUMNS, cells(GOOD), strict=True))

    assert row == {
        "mean step": "250 ms",
        "× arachne": "1.000",
        "× bound": "1.012",
        "worst": "1.250",
        "idle": "12.5 %",
        "plan time": "2 ms",
        "phases": "1",
        "over cap": "0",
    }


def test_a_planner_without_a_plan_has_dashes_and_a_reason():
    assert set(cells(FAILED)) == {"–"}
    assert notes([GOOD, FAILED]) == [f"lb_mini: {FAILED.failure}"]


def test_planners_below_the_bound_are_named_with_what_it_holds_for():
    below = replace(GOOD, name="fcp", bound_geomean=0.98)
    rounded = replace(GOOD, name="exact", bound_geomean=0.9999)
    (line,) = notes([GOOD, below, rounded])
    assert line.startswith("below 1 × bound: fcp; the bound holds within the memory cap and for ")


def drawn_page(lengths_s: dict[str, float]) -> tuple[str, dict]:
    plan = made_plan(made_batch(0))
    steps = [
        DrawnStep(name=name, plan=plan, trace=modelled_trace(plan, step_s=length_s))
        for name, length_s in lengths_s.items()
    ]
    text = render_comparison("h100x8 <b>", "a lead", [GOOD, FAILED], made_batch(0), steps)
    figures = re.search(r'id="figures">(.*?)</script>', text, re.DOTALL)
    assert figures is not None
    return text, json.loads(figures[1])


def test_all_timelines_share_an_axis_that_the_slowest_cannot_press_flat():
    shortest_s = made_plan(made_batch(0)).makespan_s * 2
    _, figures = drawn_page({"arachne": shortest_s, "fcp": 1.5 * shortest_s})
    ends_s = {figure["layout"]["xaxis"]["range"][1] for figure in figures.values()}
    assert ends_s == {1.5 * shortest_s}

    _, figures = drawn_page({"arachne": shortest_s, "static_sp": 50 * shortest_s})
    assert set(figures) == {"timeline-arachne", "timeline-static_sp"}
    ends_s = {figure["layout"]["xaxis"]["range"][1] for figure in figures.values()}
    assert ends_s == {3.0 * shortest_s}


def test_encoders_of_the_next_batch_have_the_colour_of_their_shape():
    plan = made_plan(made_batch(0))
    cascade = replace(plan.launches[0].cascade, module="vae", bucket=Bucket.parse("64x64x5"))
    ahead = replace(plan, launches=(replace(plan.launches[0], cascade=cascade), *plan.launches[1:]))
    step = DrawnStep(name="arachne", plan=ahead, trace=modelled_trace(ahead))
    text = render_comparison("title", "a lead", [GOOD], made_batch(0), [step])

    legend = text.partition('<ul class="legend">')[2].partition("</ul>")[0]
    assert "64x64x5" in legend
    assert "encoders of a shape (pale)" in legend
    assert "summing gradients" not in legend


def test_names_and_reasons_are_text_and_never_markup():
    text, _ = drawn_page({"arachne": 1.0})

    assert HOSTILE not in text
    assert "h100x8 &lt;b&gt;" in text
    assert "h100x8 <b>" not in text
    assert "lb_mini" in text


def test_a_page_without_any_plan_still_shows_the_reasons():
    text = render_comparison("t", "l", [FAILED], made_batch(0), [])

    assert "needs 128 GB" in text
