"""`arachne compare`, and what it shares with `arachne plan`."""

import argparse
import json
import subprocess
import sys

import pytest

from arachne.cli import compare, plan
from arachne.cli.disturbances import perturbation_of
from arachne.cli.whole_names_table import print_table
from arachne.core.errors import ArachneError, ConfigError, DataError, InfeasibleError
from arachne.core.placed_plan import PlacedPlan
from arachne.core.units import seconds_text
from arachne.planner import flexsp
from arachne.planner.registry import PEERS, PLANNERS
from arachne.reporting.planner_figures import COLUMNS, PlannerFigures, cells
from arachne.trainer import planning
from arachne.trainer.planning import PlanRequest, plan_batch
from tests.data.media import write_ramp

RUN_FILE = """
[run]
dir = "{root}/run"
steps = 1
[data]
path = "{root}/clips"
cache = "{root}/cache"
resolution = 64
frame_buckets = [1, 17, 33]
[model]
num_layers = 2
num_heads = 4
head_size = 16
ffn_size = 64
[batch]
clips = 6
[planner]
iterations = 50
stack_tokens = 0
"""


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("compared")
    for name, frames in (("a", 40), ("b", 20), ("c", 1)):
        write_ramp(root / "clips" / f"{name}.mp4", frames)
        (root / "clips" / f"{name}.txt").write_text(name)
    (root / "run.toml").write_text(RUN_FILE.format(root=root))
    return str(root / "run.toml")


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(flexsp, "SOLVER_LIMIT_S", 0.4)


def ran(verb, *words: str) -> int:
    parser = argparse.ArgumentParser()
    verb.add_parser(parser.add_subparsers())
    name = verb.__name__.rpartition(".")[2]
    arguments = parser.parse_args([name, *words])
    return arguments.run(arguments)


def compared(capsys, *words: str) -> dict:
    assert ran(compare, *words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_every_planner_and_peer_is_compared_on_the_same_steps(run_file, capsys):
    table = compared(capsys, run_file, "--cluster", "cpux4", "--steps", "2")

    assert (table["cluster"], table["steps"], len(table["bound_s"])) == ("cpux4", 2, 2)
    rows = table["planners"]
    assert set(rows) == {*PLANNERS, *PEERS}
    assert not [row["failure"] for row in rows.values() if row["failure"]]
    assert [row["step_s"] for row in rows.values()] == sorted(r["step_s"] for r in rows.values())
    arachne = rows["arachne"]
    assert arachne["ratio"] == 1.0
    for name, row in rows.items():
        assert row["ratio"] == pytest.approx(row["step_s"] / arachne["step_s"])
        assert row["bound_geomean"] <= row["bound_worst"]
        assert row["num_phases"] == 1 or name in PEERS
        assert row["cap_violations"] == 0
        assert 0.0 <= row["idle_ratio"] < 1.0
    for name in PLANNERS:
        assert arachne["bound_geomean"] <= rows[name]["bound_geomean"] * (1 + 1e-9)
        assert rows[name]["bound_geomean"] >= 1.0
    assert max(row["num_phases"] for row in rows.values()) > 1


def test_the_table_has_a_row_for_each_planner_and_dashes_where_one_found_no_plan(
    run_file, capsys, monkeypatch
):
    def gives_up(problem):
        raise InfeasibleError("planner 'fcp': clip 'a' needs more")

    monkeypatch.setitem(PEERS, "fcp", gives_up)
    words = ["--cluster", "cpux4", "--steps", "2", "--planners", "fcp, static_sp"]

    assert ran(compare, run_file, *words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "cpux4, 6 clips a step, 2 steps, modelled" in lines[0]
    assert {line.split()[0] for line in lines if "–" in line} == {"fcp", "static_sp"}
    assert "fcp: clip 'a' needs more" in lines
    rows = compared(capsys, run_file, *words)["planners"]
    assert list(rows) == ["static_sp", "fcp"]
    assert rows["fcp"]["failure"] == "clip 'a' needs more"
    assert rows["fcp"]["step_s"] is None
    assert rows["static_sp"]["ratio"] is None  # arachne did not take part


def test_the_reference_alone_has_a_line_and_no_empty_table(run_file, tmp_path, capsys):
    page = tmp_path / "compare.html"
    words = ["--cluster", "cpux4", "--steps", "1", "--planners", "gpipe", "--html", str(page)]
    assert ran(compare, run_file, *words) == 0

    first, second, _ = capsys.readouterr().out.splitlines()
    assert first.startswith("cpux4, 6 clips a step")
    assert second.startswith("gpipe (for reference")
    text = page.read_text(encoding="utf-8")
    assert "<table" not in text
    assert "planner by planner" not in text


def test_a_terminal_of_80_columns_keeps_what_shows_a_broken_cap(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    figures = [
        PlannerFigures(
            name=name,
            step_s=12.34 * ratio,
            ratio=ratio,
            bound_geomean=1.0 + ratio,
            bound_worst=1.1 + ratio,
            idle_ratio=0.1 * ratio,
            plan_s=0.0123 * ratio,
            cap_violations=count,
            num_phases=count + 1,
        )
        for name, ratio, count in (("static_degree_longest_first", 1.0, 0), ("flexsp", 1.5, 3))
    ]
    rows = {row.name: cells(row) for row in figures}
    print_table("planner", COLUMNS, rows, bold="")
    assert "not shown in 80 columns: phases; --json" in capsys.readouterr().out


def test_the_page_holds_the_table_and_a_timeline_for_each_planner(run_file, tmp_path, capsys):
    page = tmp_path / "compare.html"
    words = ["--planners", "arachne,static_lockstep_zero3", "--html", str(page)]
    assert ran(compare, run_file, "--cluster", "cpux4", "--steps", "3", *words) == 0

    text = page.read_text(encoding="utf-8")
    for name in ("arachne", "static_lockstep_zero3"):
        assert f'data-figure="timeline-{name}"' in text
        assert f'"timeline-{name}":' in text
    assert text.count('<td class="number">') == 2 * 8


@pytest.mark.parametrize("verb", [plan, compare])
@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (["--cluster", "cpux4", "--steps", "0"], ConfigError, "--steps is 0; it must be at least"),
        ([], ConfigError, "which cluster\\? add --cluster NAMExGPUS, for example h100x16"),
        (["--cluster", "h10x8"], ConfigError, "did you mean 'h100'"),
        (["--cluster", ""], ConfigError, "cluster '' is not NAMExGPUS"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(
    run_file, verb, words: list[str], error: type[ArachneError], message: str
):
    with pytest.raises(error, match=message) as caught:
        ran(verb, run_file, *words)
    assert "\n" not in str(caught.value)


def test_planners_that_a_run_may_use_are_planned_and_placed_as_in_a_run(
    run_file, capsys, monkeypatch
):
    asked: list[str] = []

    def counted(request: PlanRequest) -> PlacedPlan:
        asked.append(request.planner)
        return plan_batch(request)

    monkeypatch.setattr(planning, "plan_batch", counted)
    words = ["--cluster", "cpux2", "--steps", "1", "--planners", "arachne,static_sp,fcp", "--json"]

    assert ran(compare, run_file, *words) == 0

    assert asked == ["arachne", "static_sp"]
    assert set(json.loads(capsys.readouterr().out)["planners"]) == {"arachne", "static_sp", "fcp"}


@pytest.mark.parametrize("verb", [plan, compare])
def test_a_page_that_cannot_be_written_is_said_before_anything_is_read(verb, tmp_path):
    for page, message in (
        ("/nowhere/a.html", r"'/nowhere/a.html': there is no folder '/nowhere'; choose another"),
        (str(tmp_path), r"it is a folder; name a file in it"),
        (str(tmp_path / ("a" * 300)), r"File name too long; choose another"),
    ):
        with pytest.raises(DataError, match=message):
            ran(verb, "no-such-run.toml", "--cluster", "cpux2", "--html", page)


def test_a_page_that_cannot_be_written_in_the_end_is_said(run_file):
    with pytest.raises(DataError, match=r"cannot write '/dev/full': No space left .*; choose"):
        ran(plan, run_file, "--cluster", "cpux2", "--steps", "1", "--html", "/dev/full")


def test_a_dataset_without_a_usable_clip_is_refused(run_file, tmp_path):
    (tmp_path / "bad.mp4").touch()
    (tmp_path / "bad.txt").write_text("nothing")

    with pytest.raises(DataError, match=r"none of the 1 clips in .* is usable; see why with: ara"):
        ran(compare, run_file, "--cluster", "cpux2", "--set", f"data.path='{tmp_path}'")


def test_an_unknown_planner_gets_the_nearest_name_before_the_dataset_is_read(run_file):
    with pytest.raises(ConfigError, match="planner 'flexps' is not known; did you mean 'flexsp'"):
        ran(compare, run_file, "--cluster", "cpux2", "--planners", "arachne,flexps")


def test_a_run_file_that_names_a_peer_is_refused(run_file):
    with pytest.raises(ConfigError, match=r"'fcp' is a model of another system"):
        ran(plan, run_file, "--cluster", "cpux2", "--set", "planner.name=fcp")
    with pytest.raises(ConfigError, match=r"'fcp' is a model of another system"):
        ran(plan, run_file, "--cluster", "cpux2", "--planner", "fcp")


@pytest.mark.parametrize(
    ("verb", "words", "message"),
    [
        (plan, ["--planner", "gpipe"], "'gpipe' is a model of .*, for `arachne compare` only"),
        (plan, ["--planner", "opensora_buckets"], "for `arachne compare --epoch` only"),
        (plan, ["--planner", ""], "planner.name '' is not known"),
        (compare, ["--planners", "opensora_buckets"], "over an epoch; .* add --epoch CLIPS"),
        (compare, ["--planners", ""], "planner '' is not known; .*, fcp, gpipe$"),
    ],
)
def test_a_planner_of_another_verb_or_of_no_name_is_refused(run_file, verb, words, message):
    with pytest.raises(ConfigError, match=message):
        ran(verb, run_file, "--cluster", "cpux2", "--steps", "1", *words)


@pytest.mark.parametrize("verb", [plan, compare])
def test_clusters_are_listed(run_file, verb, capsys):
    assert ran(verb, run_file, "--cluster", "list") == 0
    assert {"cpu", "h100"} <= set(capsys.readouterr().out.split())


def test_plan_prints_a_row_for_each_step_and_writes_a_page(run_file, tmp_path, capsys):
    page = tmp_path / "plan.html"
    assert ran(plan, run_file, "--cluster", "cpux2", "--steps", "2", "--html", str(page)) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "arachne on cpux2, 6 clips a step (modelled)"
    text = page.read_text(encoding="utf-8")
    assert "arachne on cpux2" in text
    assert ran(plan, run_file, "--cluster", "cpux2", "--steps", "2", "--json") == 0
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert len(steps) == 2
    for index, step in enumerate(steps):
        figures = [seconds_text(step[name]) for name in ("makespan_s", "lower_bound_s", "step_s")]
        (row,) = [line for line in lines if line.startswith(f"{index} ")]
        for figure in (*figures, f"{step['makespan_s'] / step['lower_bound_s']:.3f}"):
            assert f" {figure} " in row
            assert f'<td class="number">{figure}</td>' in text
        assert f"<b>modelled</b>  {figures[2]}" in text.replace("\\u003c", "<").replace(
            "\\u003e", ">"
        )


def test_comparing_needs_no_torch(run_file):
    code = (
        "import sys; from arachne.cli.main import main; "
        "assert main(sys.argv[1:]) == 0; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'diffusers')))"
    )
    words = ["compare", run_file, "--cluster", "cpux2", "--steps", "1", "--planners", "fcp"]
    found = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, check=False)
    assert found.returncode == 0, found.stderr


def test_disturbed_hardware_is_simulated_and_plans_know_nothing_of_it(run_file, capsys):
    words = [run_file, "--cluster", "cpux4", "--steps", "1", "--planners", "arachne,static_sp"]
    calm = compared(capsys, *words)["planners"]
    table = compared(capsys, *words, "--disturb", "slow=2:3", "--disturb", "jitter=0.2")
    again = compared(capsys, *words, "--disturb", "slow=2:3", "--disturb", "jitter=0.2")
    slowed = compared(capsys, *words, "--disturb", "slow=2:3")["planners"]

    assert table["disturbed"] == ["slow=2:3", "jitter=0.2"]
    for name, row in table["planners"].items():
        assert row["step_s"] == again["planners"][name]["step_s"]
        assert row["step_s"] != slowed[name]["step_s"] > 2.0 * calm[name]["step_s"]


_NOTHING = (
    "disturbs nothing: a seed needs noise, stragglers need straggler_share above 0, and errors of "
    "0 and factors of 1 change nothing; add for example jitter=0.1, or leave --disturb out"
)

_WITHOUT_EFFECT = ("seed=9", "jitter=0", "straggler_factor=3", "bandwidth=1", "slow=0:1")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("jiter=0.1", "--disturb has the unknown name 'jiter'; did you mean 'jitter'?"),
        ("seed=1.7", "--disturb 'seed=1.7' has '1.7'; it needs a whole number there"),
        ("jitter=٣", "--disturb 'jitter=٣' has '٣'; it needs a finite number there"),
        ("seed=٣", "--disturb 'seed=٣' has '٣'; it needs a whole number there"),
        ("jitter", "--disturb 'jitter' has no value; write jitter=VALUE"),
        ("jitter=much", "--disturb 'jitter=much' has 'much'; it needs a finite number there"),
        ("bandwidth=inf", "--disturb 'bandwidth=inf' has 'inf'; it needs a finite number there"),
        ("bandwidth=0", "perturbation bandwidth is 0.0; it is between 0.001 and 1000"),
        (
            "jitter=1e308",
            "perturbation jitter is 1e+308; it is between 0, which is none, and 10",
        ),
        (
            "straggler_window_s=1e-12",
            "perturbation straggler_window_s is 1e-12; it is at least 0.001",
        ),
        (
            "slow=4:2",
            "--disturb 'slow=4:2' names no rank; write slow=RANK:FACTOR with a rank of 0 to 3, "
            "such as slow=0:1.5",
        ),
        (
            "slow=" + "9" * 5000 + ":2",
            "--disturb 'slow=" + "9" * 5000 + ":2' names no rank; write slow=RANK:FACTOR with a "
            "rank of 0 to 3, such as slow=0:1.5",
        ),
        *((setting, f"--disturb {setting} {_NOTHING}") for setting in _WITHOUT_EFFECT),
        ("slow=1", "--disturb 'slow=1' has ''; it needs a finite number there"),
    ],
)
def test_a_disturbance_that_cannot_be_is_named(setting, message):
    with pytest.raises(ConfigError) as caught:
        perturbation_of([setting], num_gpus=4)

    assert str(caught.value) == message


def test_what_alone_disturbs_nothing_may_stand_beside_what_does():
    found = perturbation_of(["seed=9", "straggler_factor=3", "straggler_share=0.1"], num_gpus=4)
    assert (found.seed, found.straggler_factor, found.straggler_share) == (9, 3.0, 0.1)


@pytest.mark.parametrize(
    ("settings", "name"),
    [(["jitter=0.1", "jitter=0.2"], "jitter"), (["slow=0:2", "slow=1:2", "slow=0:3"], "slow=0")],
)
def test_a_disturbance_that_is_given_twice_is_refused(run_file, settings: list[str], name: str):
    words = [word for setting in settings for word in ("--disturb", setting)]
    with pytest.raises(ConfigError, match=rf"^--disturb {name} is given twice; leave one out$"):
        ran(compare, run_file, "--cluster", "cpux4", "--steps", "1", *words)
