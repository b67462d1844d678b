"""The report page."""

import base64
import hashlib
import html
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import plotly.graph_objects as go
import pytest

from arachne.core.errors import DataError
from arachne.core.ledger import Ledger
from arachne.core.placed_plan import PlacedPlan
from arachne.core.units import seconds_text
from arachne.data.manifest import write_manifest
from arachne.reporting.chosen_steps import chosen_steps
from arachne.reporting.page import render_report
from arachne.reporting.planned_figures import PlannedFigures, planned_cells
from arachne.reporting.report_data import ReportData, Sample, read_report_data
from arachne.reporting.run_files import MANIFEST, METRICS, Metrics, rank_log_path
from tests.reporting.made_runs import (
    HOSTILE,
    made_batch,
    made_ledger,
    made_plan,
    made_png,
    write_made_run,
)


class Page(HTMLParser):
    """What a browser would find: tags with their attributes, scripts, visible text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.text = ""
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "script":
            attributes, before = self.scripts[-1]
            self.scripts[-1] = attributes, before + data
        elif self._inside != "style":
            self.text += data + " "


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    folder = write_made_run(tmp_path_factory.mktemp("runs") / "first", num_steps=12)
    write_manifest(made_ledger(14), folder / MANIFEST)
    (folder / "comparison.json").write_text('{"step_s": {"arachne": 0.3, "static-dp": 0.6}}')
    (folder / "samples").mkdir()
    (folder / "samples" / "wave.png").write_bytes(made_png())
    return folder


@pytest.fixture(scope="module")
def text(run_dir) -> str:
    return render_report(run_dir)


@pytest.fixture(scope="module")
def page(text) -> Page:
    return Page(text)


def figures_of(page: Page) -> dict:
    return json.loads(next(body for attributes, body in page.scripts if attributes))


def test_the_page_asks_nothing_of_the_network(page, text):
    for tag, attributes in page.tags:
        for name in ("src", "href", "srcset", "action"):
            target = attributes.get(name)
            assert target is None or target.startswith("data:image/png;base64,"), (tag, target)
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_plotly_is_there_once(text):
    assert text.count("plotly.js v") == 1


def test_the_policy_names_exactly_the_scripts_of_the_page(page):
    policy = next(
        attributes["content"]
        for tag, attributes in page.tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    named = set(re.findall(r"'sha256-([^']+)'", policy))
    present = {
        base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        for attributes, body in page.scripts
        if not attributes
    }
    assert named == present
    assert len(named) == 2
    assert "default-src 'none'" in policy


def test_captions_and_names_cannot_bring_markup_into_the_page(page, text):
    assert HOSTILE not in text
    assert html.escape(HOSTILE) in text
    assert HOSTILE in page.text
    assert len(page.scripts) == 3
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)


@pytest.mark.parametrize("hostile", [HOSTILE, "</script><b>x", "\u2028<!--<script>", "a&lt;b"])
def test_every_text_of_a_run_is_escaped(hostile):
    batch = made_batch(0)
    batch = replace(batch, clips=tuple(replace(clip, name=hostile) for clip in batch.clips))
    rows = made_ledger(4).rows
    rows = tuple(
        replace(row, reason=hostile, arithmetic=hostile, clip=replace(row.clip, path=hostile))
        for row in rows
    )
    plan = replace(made_plan(batch), planner=hostile)
    data = ReportData(
        title=hostile,
        plans={0: plan},
        batches={0: batch},
        ledger=Ledger(rows=rows),
        samples=(Sample(name=hostile, png=made_png()),),
        notes=(hostile,),
    )
    page = Page(render_report(data))
    assert len(page.scripts) == 3
    assert page.text.count(hostile) >= 1 + 1 + 4 * 3 + 1 + 1
    assert "b" not in {tag for tag, _ in page.tags}
    assert figures_of(page)
    assert "<" not in next(body for attributes, body in page.scripts if attributes)


def test_all_figures_are_drawn_and_plotly_accepts_them(page):
    figures = figures_of(page)
    for figure in figures.values():
        assert go.Figure(figure).data
    shown = {a["data-figure"] for _, a in page.tags if "data-figure" in a}
    shown |= {a["data-shows"] for _, a in page.tags if "data-shows" in a}
    assert shown == set(figures)
    assert {"idle", "balance", "prediction", "step-time", "loss", "comparison"} < shown


def test_the_page_holds_every_section(page):
    for heading in (
        "Where the time went",
        "Balance",
        "Cost model",
        "Learning",
        "Strategies",
        "Samples",
        "Clips",
    ):
        assert heading in page.text
    for figure in ("Training loss", "Idle ratio", "Step time", "Throughput", "on 4 ranks"):
        assert figure in page.text
    assert "8 kept, 3 trimmed, 3 rejected" in page.text
    assert "2.00×" in page.text
    assert "132f@25 → 84f@16 → 81" in page.text


def test_a_run_with_nothing_but_metrics_has_no_empty_section(run_dir):
    data = read_report_data(run_dir)
    page = Page(render_report(ReportData(title="bare", metrics=data.metrics)))
    assert set(figures_of(page)) == {"idle", "step-time", "loss"}
    assert "stored neither traces nor plans" in page.text
    for heading in ("Strategies", "Samples", "Clips "):
        assert heading not in page.text


def test_a_plan_alone_makes_a_page_without_measurements():
    data = ReportData(title="plan", plans={step: made_plan(made_batch(step)) for step in range(3)})
    page = Page(render_report(data))
    assert set(figures_of(page)) == {"step-0", "step-1", "step-2"}
    assert "no measured traces" in page.text
    assert "3 planned steps on 4 ranks" in page.text


def test_a_page_of_plans_alone_has_the_tables_figures_and_does_not_say_that_they_were_run():
    plan = made_plan(made_batch(0))
    figures = PlannedFigures(
        step=0,
        num_tokens=4321,
        num_launches=len(plan.launches),
        degrees=(1, 2),
        makespan_s=plan.makespan_s,
        lower_bound_s=plan.makespan_s / 1.25,
        step_s=plan.makespan_s + 2.0,
        idle_ratio=0.125,
    )
    page = Page(render_report(ReportData(title="plan", plans={0: plan}, planned=(figures,))))

    assert "Where the time would go" in page.text
    assert "All times are modelled; nothing was run." in page.text
    for absent in ("Where the time went", "wall-clock", "this run"):
        assert absent not in page.text
    for cell in planned_cells(figures):
        assert cell in page.text
    assert planned_cells(figures)[1:6] == (
        str(len(plan.launches)),
        "1,2",
        seconds_text(plan.makespan_s),
        seconds_text(plan.makespan_s / 1.25),
        "1.250",
    )
    (title,) = figures_of(page)["step-0"]["layout"]["annotations"]
    assert title["text"].startswith(f"<b>modelled</b>  {seconds_text(figures.step_s)}, ")


def with_encoders(plan: PlacedPlan) -> PlacedPlan:
    first = replace(plan.launches[0], cascade=replace(plan.launches[0].cascade, module="vae"))
    return replace(plan, launches=(first, *plan.launches[1:]))


def test_the_legend_explains_all_that_is_drawn_and_nothing_else(run_dir):
    plan = made_plan(made_batch(0))
    planned = Page(render_report(ReportData(title="plan", plans={0: plan}))).text
    assert "waiting for other ranks" in planned
    for absent in ("encoders", "waiting for data", "summing gradients", "optimizer "):
        assert absent not in planned
    encoded = ReportData(title="plan", plans={0: with_encoders(plan)})
    assert "encoders of a shape (pale)" in Page(render_report(encoded)).text
    measured = Page(render_report(run_dir)).text
    assert "summing gradients" in measured
    assert "encoders of" not in measured


def test_a_page_without_any_figure_needs_no_script():
    page = Page(render_report(ReportData(title="empty", metrics=Metrics())))
    assert page.scripts == []


def test_a_long_ledger_shows_200_rows_rejected_first_and_counts_all():
    text = render_report(ReportData(title="clips", ledger=made_ledger(1000)))
    assert text.count('<span class="badge') == 200
    assert text.index('badge rejected"') < text.index('<span class="badge') + 40
    assert 'badge kept"' not in text
    assert "1,000 clips: 500 kept, 250 trimmed, 250 rejected." in text
    assert "The first 200 are listed" in text


def test_chosen_steps_are_few_and_say_why(run_dir):
    data = read_report_data(run_dir)
    chosen = chosen_steps(data)
    assert len(chosen) == 8
    assert [c.step for c in chosen] == sorted(c.step for c in chosen)
    assert (chosen[0].step, chosen[0].reason) == (0, "first")
    assert (chosen[-1].step, chosen[-1].reason) == (11, "last")
    slowest = max(data.traces, key=lambda step: data.traces[step].iteration_s)
    assert slowest in {c.step for c in chosen}


def test_a_single_step_is_chosen_once():
    data = ReportData(title="one", plans={5: made_plan(made_batch(5))})
    assert [(c.step, c.reason) for c in chosen_steps(data)] == [(5, "first")]


def test_what_a_killed_run_left_is_reported_on_the_page(tmp_path):
    run_dir = write_made_run(tmp_path / "killed", num_steps=4)
    for path in (run_dir / METRICS, rank_log_path(run_dir, 2)):
        path.write_bytes(path.read_bytes()[:-25])
    (run_dir / "comparison.json").write_text("{")
    (run_dir / MANIFEST).write_bytes(b"no parquet")
    (run_dir / "samples").mkdir()
    (run_dir / "samples" / "broken.png").write_bytes(b"GIF89a")
    text = Page(render_report(run_dir)).text
    for part in (
        "metrics.jsonl: line",
        "rank-00002.jsonl: line 4 is torn",
        "not every rank logged step 3",
        "comparison.json cannot be read",
        "ledger.parquet' cannot be read",
        "broken.png is not a PNG",
    ):
        assert part in text, part


def test_a_folder_that_is_no_run_is_refused_in_one_line(tmp_path):
    with pytest.raises(DataError, match=r"is not a run: it has no metrics\.jsonl, .*train"):
        read_report_data(tmp_path)
    with pytest.raises(DataError, match="there is no folder"):
        read_report_data(tmp_path / "missing")
