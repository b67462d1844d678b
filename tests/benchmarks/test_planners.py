"""The head-to-head benchmark: the setting is the published one, the file has the agreed form."""

import json
from dataclasses import replace
from pathlib import Path

import planner_figures
import planner_settings
import planners
import pytest
from planner_figures import Comparison, Tally, planned, run_exact, run_sensitivity
from planner_settings import FlexSpCosts, Setting, problem_of, settings_of, small_problem

from arachne.planner import flexsp
from arachne.planner.lower_bound import lower_bound_s
from arachne.planner.registry import PEERS, PLANNERS
from arachne.planner.stacking import cascade_of

COSTS = FlexSpCosts(launch_overhead_s=0.030)


@pytest.fixture
def tiny() -> Setting:
    first = settings_of(is_quick=True)[0]
    return replace(first, num_gpus=4, clips_per_gpu=2, num_batches=2, iterations=60)


def test_costs_are_the_published_formula():
    problem = problem_of([7800, 7800], 8, 8, COSTS, iterations=0)
    single = cascade_of(problem.batch.clips, (0,))
    both = cascade_of(problem.batch.clips, (0, 1))

    # (5.128e-6 · 7800² + 0.18396 · 7800) ms alone; a fourth of it and 2·32·4096·8 bytes a token
    # over 104 GB/s on four GPUs.
    assert single.num_tokens == 7800
    assert COSTS.launch_s(single, (0,)) == pytest.approx(0.030 + 1.74688, rel=1e-5)
    assert COSTS.launch_s(both, (0, 1, 2, 3)) == pytest.approx(
        0.030 + 2 * (1.74688 / 4 + 7800 * 2 / 4 / 104e3), rel=1e-5
    )


def test_another_bandwidth_changes_what_is_moved_alone():
    problem = problem_of([7800], 8, 8, COSTS, iterations=0)
    single = cascade_of(problem.batch.clips, (0,))
    fast = replace(COSTS, bandwidth_factor=2.0)

    saved_s = COSTS.launch_s(single, (0, 1)) - fast.launch_s(single, (0, 1))

    assert saved_s == pytest.approx(7800 * 2 / 2 / 119.5e3 / 2, rel=1e-5)
    assert COSTS.launch_s(single, (0,)) == fast.launch_s(single, (0,))


def test_the_token_cap_stands_in_for_memory():
    problem = problem_of([20480, 20481], 2, 2, COSTS, iterations=0)
    at_cap, above = (cascade_of(problem.batch.clips, (slot,)) for slot in (0, 1))

    assert problem.costs.fits(at_cap, (0,))
    assert not problem.costs.fits(above, (0,))
    assert problem.costs.fits(above, (0, 1))


def test_the_full_run_covers_every_setting():
    settings = settings_of(is_quick=False)

    assert {setting.num_gpus for setting in settings} == {8, 16, 32, 64, 256, 1024}
    assert len({setting.name for setting in settings}) == 6 * 2 * 3 * 2
    for setting in settings:
        problem = next(setting.problems())
        assert len(problem.batch.clips) == setting.num_gpus * setting.clips_per_gpu
        assert problem.degrees[-1] == (16 if setting.num_gpus > 64 else setting.num_gpus)


def test_sensitivity_covers_every_mix_at_three_bandwidths_and_launch_costs():
    settings = planner_settings.sensitivity_settings(is_quick=False)

    assert len({setting.name for setting in settings}) == 2 * 3 * 3 * 3
    assert {setting.launch_ms for setting in settings} == {10, 30, 100}
    assert {setting.bandwidth_factor for setting in settings} == {0.7, 1.0, 1.3}


def test_a_setting_draws_the_same_batches_each_time(tiny: Setting):
    first, again = list(tiny.problems()), list(tiny.problems())

    assert first == again
    assert first[0].batch != first[1].batch


def test_every_planner_is_at_or_above_the_bound(tiny: Setting, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(flexsp, "SOLVER_LIMIT_S", 0.3)
    comparison = Comparison.empty()

    comparison.run(tiny)

    assert comparison.num_batches == 2
    assert comparison.num_worse == 0
    assert set(comparison.totals) == set(PLANNERS | PEERS)
    assert list(comparison.settings) == ["t2v/30ms/4gpus/2clips"]
    rows = comparison.settings["t2v/30ms/4gpus/2clips"]["planners"]
    for row in rows.values():
        assert all(ratio >= 1.0 for ratio in row["ratios"])
    assert rows["arachne"]["worst"] <= rows["static_degree_longest_first"]["worst"]
    density = comparison.density_figures()["2 clips per GPU"]
    assert 1.0 <= density["over_proved_geomean"] <= density["geomean"] <= density["worst"]


def test_batches_above_what_is_aimed_at_are_named_with_what_is_proved(
    tiny: Setting, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("ortools")
    monkeypatch.setattr(planner_figures, "PEERS", {})
    comparison = Comparison.empty()

    for most_ratio in (2.0, 1.0):
        assert comparison.above == []
        monkeypatch.setattr(planner_figures, "MOST_RATIO", {2: most_ratio})
        comparison.run(replace(tiny, num_batches=1, iterations=500))

    ratios = comparison.settings["t2v/30ms/4gpus/2clips"]["planners"]["arachne"]["ratios"]
    assert [one["arachne"] for one in comparison.above] == ratios
    # The search found the shortest plans, which the configuration bound is below.
    assert [one["proved"] for one in comparison.above] == pytest.approx(ratios, rel=1e-4)


def test_a_planner_longer_than_a_baseline_is_counted(
    tiny: Setting, monkeypatch: pytest.MonkeyPatch
):
    slow = {**PLANNERS, "arachne": PLANNERS["static_sp"]}
    monkeypatch.setattr(planner_figures, "PEERS", {})
    monkeypatch.setattr(planner_figures, "PLANNERS", slow)
    comparison = Comparison.empty()

    comparison.run(replace(tiny, launch_ms=200))

    assert 0 < comparison.num_worse <= comparison.num_batches
    beaten = [one for one in comparison.beaten if one["by"] == "static_degree_longest_first"]
    assert beaten
    assert all(one["ratio"] < one["arachne"] for one in beaten)


def test_a_planner_that_breaks_the_cap_beats_nobody(tiny: Setting):
    problem = next(tiny.problems())
    tally, plan = planned("arachne", problem, lower_bound_s(problem))
    comparison = Comparison.empty()
    assert plan is not None

    for violations in (1, 0):
        winner = Tally(ratios=[0.5], plan_s=[0.0], cap_violations=violations)
        comparison._note_if_beaten(tiny, problem, "made up", winner, plan, lower_bound_s(problem))
        assert len(comparison.beaten) == 1 - violations
    assert tally.ratios[0] == comparison.beaten[0]["arachne"]


def test_small_gains_are_named(tiny: Setting, monkeypatch: pytest.MonkeyPatch):
    figures = run_sensitivity([tiny, replace(tiny, launch_ms=200)])
    assert figures["least"] == min(figures["gains"].values())

    monkeypatch.setattr(planner_figures, "SMALL_GAIN", 1.0)

    assert run_sensitivity([tiny])["below_3_percent"] == [tiny.name]


def test_the_referee_agrees_with_the_search_on_small_problems():
    pytest.importorskip("ortools")

    row = run_exact(3, time_limit_s=5.0)

    assert row["instances"] == 3
    assert row["unproved"] == 0
    assert 1.0 <= row["geomean"] <= row["worst"] <= 1.03


def test_small_problems_can_be_planned():
    for seed in range(40):
        assert lower_bound_s(small_problem(seed)) > 0.0


def test_the_file_has_the_agreed_form(
    tiny: Setting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys
):
    monkeypatch.setattr(planners, "settings_of", lambda is_quick: [replace(tiny, has_peers=False)])
    monkeypatch.setattr(planners, "sensitivity_settings", lambda is_quick: [tiny])
    ratios = {"geomean": 1.0, "worst": 1.5}
    exact = {**ratios, "instances": 200, "unproved": 3}
    monkeypatch.setattr(planners, "run_exact", lambda *_, **__: exact)
    first = {**ratios, "gpus": 64, "plan_s_most": 0.028}
    monkeypatch.setattr(planners, "run_first", lambda *_, **__: first)
    scale = {"gpus": 1024, "clips": 4096, "plan_s": 1.0, "ratio": 1.25}
    monkeypatch.setattr(planners, "run_scale", lambda *_: scale)
    file = tmp_path / "out.json"

    assert planners.main(["--json", str(file)]) == 0

    printed = capsys.readouterr().out
    assert not set("{}[]") & set(printed)
    rows = [line.split() for line in printed.splitlines()]
    assert ["first", "plan,", "64", "GPUs", "1.0000", "1.5000"] in rows
    assert ["1,024", "GPUs,", "4,096", "clips", "1.2500", "1.2500"] in rows
    assert "first plan after 28 ms at most; the largest case took 1.00 s" in printed
    assert "longer than a baseline on 0 of 2 batches" in printed

    result = json.loads(file.read_text(encoding="utf-8"))
    assert set(result) >= {"about", "settings", "planners", "law5", "exact", "scale"}
    assert set(result["about"]) >= {"machine", "python", "commit", "date"}
    assert set(result["planners"]["arachne"]) >= {
        "geomean",
        "worst",
        "plan_s_median",
        "cap_violations",
    }
    assert result["law5"] == {"batches": 2, "worse": 0}
    assert result["above"] == []
