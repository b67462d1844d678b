"""The head-to-head benchmark: the setting is the published one, the file has the agreed form."""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from arachne.planner import flexsp
from arachne.planner.lower_bound import lower_bound_s
from arachne.planner.registry import PEERS, PLANNERS
from arachne.planner.stacking import cascade_of

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "planners.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_planners", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tiny(script: ModuleType):
    first = script.settings_of(is_quick=True)[0]
    return replace(first, num_gpus=4, clips_per_gpu=2, num_batches=2, iterations=60)


def test_costs_are_the_published_formula(script: ModuleType):
    problem = script.problem_of([7800, 7800], 8, 8, launch_ms=30, iterations=0)
    single = cascade_of(problem.batch.clips, (0,))
    both = cascade_of(problem.batch.clips, (0, 1))

    # (5.128e-6 · 7800² + 0.18396 · 7800) ms alone; a fourth of it and 2·32·4096·8 bytes a token
    # over 104 GB/s on four GPUs.
    assert single.num_tokens == 7800
    assert problem.costs.launch_s(single, (0,)) == pytest.approx(0.030 + 1.74688, rel=1e-5)
    assert problem.costs.launch_s(both, (0, 1, 2, 3)) == pytest.approx(
        0.030 + 2 * (1.74688 / 4 + 7800 * 2 / 4 / 104e3), rel=1e-5
    )


def test_the_token_cap_stands_in_for_memory(script: ModuleType):
    problem = script.problem_of([20480, 20481], 2, 2, launch_ms=30, iterations=0)
    at_cap, above = (cascade_of(problem.batch.clips, (slot,)) for slot in (0, 1))

    assert problem.costs.fits(at_cap, (0,))
    assert not problem.costs.fits(above, (0,))
    assert problem.costs.fits(above, (0, 1))


def test_the_full_run_covers_every_setting(script: ModuleType):
    settings = script.settings_of(is_quick=False)

    assert {setting.num_gpus for setting in settings} == {8, 16, 32, 64, 256, 1024}
    assert len({setting.name for setting in settings}) == 6 * 2 * 3 * 2
    for setting in settings:
        problem = next(setting.problems())
        assert len(problem.batch.clips) == setting.num_gpus * setting.clips_per_gpu
        assert problem.degrees[-1] == (16 if setting.num_gpus > 64 else setting.num_gpus)


def test_a_setting_draws_the_same_batches_each_time(script: ModuleType, tiny):
    first, again = list(tiny.problems()), list(tiny.problems())

    assert first == again
    assert first[0].batch != first[1].batch


def test_every_planner_is_at_or_above_the_bound(
    script: ModuleType, tiny, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(flexsp, "SOLVER_LIMIT_S", 0.3)

    by_setting, totals, num_batches, num_worse = script.run_settings([tiny])

    assert num_batches == 2
    assert num_worse == 0
    assert set(totals) == set(PLANNERS | PEERS)
    assert list(by_setting) == ["t2v/30ms/4gpus/2clips"]
    rows = by_setting["t2v/30ms/4gpus/2clips"]["planners"]
    for row in rows.values():
        assert all(ratio >= 1.0 for ratio in row["ratios"])
    assert rows["arachne"]["worst"] <= rows["static_degree_longest_first"]["worst"]


def test_a_planner_longer_than_a_baseline_is_counted(
    script: ModuleType, tiny, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(script, "PEERS", {})
    monkeypatch.setattr(script, "PLANNERS", {**PLANNERS, "arachne": PLANNERS["static_sp"]})

    _, _, num_batches, num_worse = script.run_settings([replace(tiny, launch_ms=200)])

    assert 0 < num_worse <= num_batches


def test_the_referee_agrees_with_the_search_on_small_problems(script: ModuleType):
    pytest.importorskip("ortools")

    row = script.run_exact(3, time_limit_s=5.0)

    assert row["instances"] == 3
    assert row["unproved"] == 0
    assert 1.0 <= row["geomean"] <= row["worst"] <= 1.03


def test_small_problems_can_be_planned(script: ModuleType):
    for seed in range(40):
        assert lower_bound_s(script.small_problem(seed)) > 0.0


def test_the_file_has_the_agreed_form(
    script: ModuleType, tiny, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(script, "settings_of", lambda is_quick: [replace(tiny, has_peers=False)])
    monkeypatch.setattr(script, "run_exact", lambda *_, **__: {"geomean": 1.0, "worst": 1.0})
    monkeypatch.setattr(script, "run_first", lambda *_, **__: {"gpus": 64})
    monkeypatch.setattr(
        script, "run_scale", lambda *_: {"gpus": 1024, "clips": 4096, "plan_s": 1.0}
    )
    file = tmp_path / "out.json"

    assert script.main(["--json", str(file)]) == 0

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
