"""The timeline of a step."""

from dataclasses import replace

import plotly.graph_objects as go
import pytest

from arachne.core.rank_log import trace_from_logs
from arachne.core.trace import Span
from arachne.reporting.launch_text import launch_name
from arachne.reporting.modelled_trace import modelled_trace
from arachne.reporting.shape_colours import shape_paints
from arachne.reporting.timeline import KIND_COLOURS, num_bars, timeline
from tests.reporting.made_runs import made_batch, made_logs, made_plan

BATCH = made_batch(3)
PLAN = made_plan(BATCH)
MEASURED = trace_from_logs(made_logs(PLAN))
MODELLED = modelled_trace(PLAN, PLAN.makespan_s + 0.01)


@pytest.fixture(scope="module")
def figure() -> dict:
    return timeline([MEASURED, MODELLED], PLAN, batch=BATCH)


def bars(figure: dict, axis: str, colour: str | None = None) -> list[tuple]:
    found = []
    for trace in figure["data"]:
        if trace["yaxis"] == axis and colour in (None, trace["marker"]["color"]):
            found += zip(trace["y"], trace["base"], trace["x"], trace["hovertext"], strict=True)
    return found


def test_plotly_accepts_every_property_of_the_figure(figure):
    assert len(go.Figure(figure).data) == len(figure["data"])


def test_each_launch_is_one_bar_on_each_of_its_ranks(figure):
    painted = {paint.colour for paint in shape_paints(c.bucket for c in BATCH.clips).values()}
    for axis, trace in (("y", MEASURED), ("y2", MODELLED)):
        drawn = sorted(
            (rank, base, base + length)
            for colour in painted
            for rank, base, length, _ in bars(figure, axis, colour)
        )
        expected = sorted(
            (
                rank,
                min(s.start_s for s in trace.spans if (s.rank, s.launch) == (rank, index)),
                max(s.end_s for s in trace.spans if (s.rank, s.launch) == (rank, index)),
            )
            for rank in range(4)
            for index, _ in PLAN.on_rank(rank)
        )
        assert len(drawn) == len(expected)
        for found, wanted in zip(drawn, expected, strict=True):
            assert found == pytest.approx(wanted, abs=1e-6)


def test_measured_lies_above_modelled_on_one_shared_axis(figure):
    layout = figure["layout"]
    assert layout["yaxis"]["domain"][0] > layout["yaxis2"]["domain"][1]
    assert layout["xaxis"]["title"]["text"] == "from the start of the step"
    assert (layout["xaxis"]["tickformat"], layout["xaxis"]["ticksuffix"]) == ("~s", "s")
    assert "xaxis2" not in layout
    titles = [note["text"] for note in layout["annotations"]]
    assert titles[0].startswith("<b>measured</b>")
    assert titles[1].startswith("<b>modelled</b>")


def test_hover_texts_tell_clips_shape_tokens_degree_and_both_durations(figure):
    launch = PLAN.launches[0]
    texts = [bar[3] for bar in bars(figure, "y") if launch_name(launch) in bar[3]]
    slot = launch.cascade.slots[0]
    name = BATCH.clips[slot].name.replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#x27;")
    text = next(text for text in texts if name in text)
    for part in ("1 clip, 1,911 tokens", "degree 2 (ranks 0–1)", "measured ", "predicted "):
        assert part in text


def test_names_of_clips_cannot_bring_markup_into_hover_texts(figure):
    texts = [bar[3] for bar in bars(figure, "y") + bars(figure, "y2")]
    assert any("&lt;script&gt;" in text for text in texts)
    assert not any("<script" in text for text in texts)


def test_waiting_inside_a_launch_is_a_veil_and_outside_a_light_bar(figure):
    inside = [s for s in MEASURED.spans if s.kind == "wait" and s.launch is not None]
    outside = [s for s in MEASURED.spans if s.kind == "wait" and s.launch is None]
    assert inside
    assert outside
    assert len(bars(figure, "y", KIND_COLOURS["wait"])) == len(outside)
    shortest_s = 0.001 * MEASURED.iteration_s
    veil = next(t for t in figure["data"] if t["yaxis"] == "y" and "236" in t["marker"]["color"])
    assert len(veil["x"]) == sum(span.duration_s >= shortest_s for span in inside)


def test_the_same_shape_has_the_same_colour_in_every_step():
    paints = shape_paints(clip.bucket for step in (1, 2) for clip in made_batch(step).clips)
    for step in (1, 2):
        plan = made_plan(made_batch(step))
        figure = timeline([modelled_trace(plan)], plan, paints=paints)
        for trace in figure["data"]:
            for text in trace["hovertext"]:
                for bucket, paint in paints.items():
                    if f"dit {bucket} " in text:
                        assert trace["marker"]["color"] == paint.colour


def many_spans(spans: tuple[Span, ...], parts: int) -> tuple[Span, ...]:
    """Each launch cut into alternating work and waiting, as collectives of many layers do."""
    cut: list[Span] = []
    for span in spans:
        pieces = parts if span.launch is not None else 1
        each_s = span.duration_s / pieces
        for i in range(pieces):
            kind = "wait" if i % 2 else span.kind
            begin_s = span.start_s + i * each_s
            cut.append(replace(span, kind=kind, start_s=begin_s, end_s=begin_s + each_s))
    return tuple(cut)


def test_hundreds_of_ranks_stay_a_few_bars_each():
    batch = made_batch(1, num_clips=512)
    plan = made_plan(batch, world_size=256)
    modelled = modelled_trace(plan)
    trace = replace(modelled, is_measured=True, spans=many_spans(modelled.spans, parts=40))
    figure = timeline([trace, modelled], plan, batch=batch)
    drawn = sum(len(part["x"]) for part in figure["data"])
    assert len(trace.spans) > 20_000
    assert num_bars(trace) == num_bars(modelled)
    assert drawn <= 2 * num_bars(modelled) + 4000
    assert figure["layout"]["height"] < 1100
    assert all("text" not in part for part in figure["data"])


def test_without_a_plan_launches_are_numbered_and_grey():
    figure = timeline([MEASURED], None)
    assert any("<b>launch 0</b>" in bar[3] for bar in bars(figure, "y"))
    assert go.Figure(figure)


def test_a_trace_without_spans_draws_an_empty_panel():
    figure = timeline([replace(MEASURED, spans=())], PLAN)
    assert figure["data"] == []
    assert go.Figure(figure)


def test_more_shapes_than_colours_are_told_apart_by_hatches():
    shapes = [replace(BATCH.clips[0].bucket, frames=1 + 4 * k) for k in range(20)]
    paints = shape_paints(shapes)
    assert len({(paint.colour, paint.hatch) for paint in paints.values()}) == 20
    assert paints == shape_paints(reversed(shapes))


def test_encoders_are_pale_bars_of_their_shapes_colour():
    first, *others = PLAN.launches
    encoding = replace(first, cascade=replace(first.cascade, module="vae"))
    plan = replace(PLAN, launches=(encoding, *others))
    drawn = timeline([modelled_trace(plan, plan.makespan_s)], plan)["data"]
    (pale,) = [trace for trace in drawn if trace["marker"].get("opacity")]
    assert (
        pale["marker"]["color"]
        == shape_paints(launch.cascade.bucket for launch in plan.launches)[
            first.cascade.bucket
        ].colour
    )
    assert pale["y"] == list(first.ranks)
    assert set(pale["text"]) == {launch_name(encoding)}
    assert pale["text"][0].startswith("vae ")
