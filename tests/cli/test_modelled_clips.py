"""Whose clips `arachne plan` and `compare` model: a dataset's, a manifest's, or drawn ones."""

import json
import re
from pathlib import Path

import pytest

from arachne.cli import clip_source
from arachne.cli.main import main
from arachne.core.bucket import Bucket
from arachne.core.clip import Clip
from arachne.core.ledger import Ledger, LedgerRow
from arachne.data.manifest import write_manifest
from arachne.planner import flexsp
from arachne.planner.registry import EPOCH_PEERS
from tests.data.media import write_ramp

RUN_FILE = """
[run]
dir = "{root}/run"
steps = 1
[data]
path = "{root}/nothing"
cache = "{root}/cache"
resolution = 64
frame_buckets = [1, 17, 33]
held_out = 0.5
[model]
num_layers = 2
num_heads = 4
head_size = 16
ffn_size = 64
[batch]
clips = 6
[planner]
iterations = 20
stack_tokens = 0
"""


@pytest.fixture
def run_file(tmp_path: Path) -> str:
    """A run file whose dataset does not exist."""
    (tmp_path / "run.toml").write_text(RUN_FILE.format(root=tmp_path))
    return str(tmp_path / "run.toml")


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(clip_source, "NUM_DRAWN", 600)
    monkeypatch.setattr(flexsp, "SOLVER_LIMIT_S", 0.4)


def planned(capsys, *words: str) -> list[dict]:
    """The steps that `arachne plan` prints."""
    assert main(["plan", *words, "--cluster", "cpux2", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["steps"]


def shapes(steps: list[dict]) -> set[tuple[int, int, int]]:
    buckets = [launch["cascade"]["bucket"] for step in steps for launch in step["plan"]["launches"]]
    return {(bucket["width"], bucket["height"], bucket["frames"]) for bucket in buckets}


def num_clips(step: dict) -> int:
    return sum(len(launch["cascade"]["slots"]) for launch in step["plan"]["launches"])


def refusal(capsys, *words: str) -> str:
    """The one line that a user reads."""
    assert main([*words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize("name", ["panda70m", "webvid10m", "opensora1.2-stage3"])
def test_clips_of_a_public_set_are_planned_without_any_dataset(run_file, capsys, name):
    steps = planned(capsys, run_file, "--clips", name, "--steps", "3")

    assert [num_clips(step) for step in steps] == [6, 6, 6]
    assert shapes(steps) <= {(80, 48, frames) for frames in (1, 17, 33)}
    again = planned(capsys, run_file, "--clips", name, "--steps", "2")
    assert again[0]["plan"] == steps[0]["plan"]


def test_the_batch_the_longest_clip_and_the_sizes_can_be_named(run_file, capsys):
    words = ["--batch", "20", "--frame-cap", "10", "--resolutions", "160x96:1,96x160:1"]
    steps = planned(capsys, run_file, "--clips", "webvid10m", "--steps", "1", *words)

    assert num_clips(steps[0]) == 20
    assert shapes(steps) == {(160, 96, 9), (96, 160, 9)}


def test_a_cap_lets_every_clip_take_the_longest_legal_length(run_file, capsys):
    words = ["--batch", "60", "--frame-cap", "81"]
    steps = planned(capsys, run_file, "--clips", "panda70m", "--steps", "1", *words)

    frames = {frames for _, _, frames in shapes(steps)}
    assert max(frames) == 81
    assert len(frames) > 8  # and not only those of data.frame_buckets
    assert all(count % 4 == 1 for count in frames)


def row(name: str, bucket: str | None, num_tokens: int = 7) -> LedgerRow:
    return LedgerRow(
        clip=Clip(path=name, caption=name),
        status="rejected" if bucket is None else "kept",
        arithmetic="",
        reason="it is cursed" if bucket is None else "",
        bucket=None if bucket is None else Bucket.parse(bucket),
        num_tokens=0 if bucket is None else num_tokens,
        content="",
    )


def manifest_at(folder: Path, *rows: LedgerRow) -> str:
    write_manifest(Ledger(rows=rows), folder / "manifest.parquet")
    return str(folder / "manifest.parquet")


def test_a_manifest_stands_for_its_dataset(run_file, tmp_path, capsys):
    rows = (row("a", "64x48x17"), row("b", None), row("c", "48x64x33"))
    name = manifest_at(tmp_path, *rows)

    steps = planned(capsys, run_file, "--clips", name, "--steps", "1")
    assert shapes(steps) == {(64, 48, 17), (48, 64, 33)}
    assert steps[0]["num_tokens"] == 3 * 4 * 3 * 5 + 3 * 3 * 4 * 9  # the model's, not the file's

    steps = planned(capsys, run_file, "--clips", name, "--steps", "1", "--frame-cap", "20")
    assert shapes(steps) == {(64, 48, 17), (48, 64, 17)}


def test_the_datasets_own_clips_take_a_cap_too(run_file, tmp_path, capsys):
    write_ramp(tmp_path / "nothing" / "a.mp4", 30)
    (tmp_path / "nothing" / "a.txt").write_text("a")
    unheld = ["--set", "data.held_out=0.0", "--steps", "1"]

    assert {s[2] for s in shapes(planned(capsys, run_file, *unheld))} == {17}
    assert {s[2] for s in shapes(planned(capsys, run_file, *unheld, "--frame-cap", "9"))} == {9}


@pytest.mark.parametrize("verb", ["plan", "compare"])
def test_public_sets_are_listed_with_the_origin_of_their_figures(run_file, capsys, verb):
    assert main([verb, run_file, "--clips", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.partition(": ")[0] for line in lines]
    assert names == ["panda70m", "webvid10m", "opensora1.2-stage3"]
    assert all("assumption" in line for line in lines)


@pytest.mark.parametrize("verb", ["plan", "compare"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "data.path '.*nothing' does not exist; name an existing folder"),
        (["--clips", "panda"], "no clip source is called 'panda'; did you mean 'panda70m'"),
        (
            ["--clips", "no.parquet"],
            "--clips 'no.parquet': there is no such file; name a manifest that exists, or a set",
        ),
        (["--clips", "panda70m", "--batch", "0"], "--batch is 0; it must be at least 1"),
        (["--clips", "panda70m", "--frame-cap", "0"], "--frame-cap is 0; it must be at least 1"),
        (
            ["--clips", "panda70m", "--frame-cap", "1000000000"],
            "--frame-cap is 1,000,000,000; it must be at most 10,000",
        ),
        (["--clips", "panda70m", "--batch", "1000000000"], "--batch is 1,.*; it must be at most"),
        (["--clips", "panda70m", "--steps", "1000000000"], "--steps is 1,.*; it must be at most"),
        (["--clips", "panda70m", "--set", "batch.clips=1000000"], "batch.clips is 1,000,000; it"),
        (["--clips", "panda70m", "--resolutions", "9" * 5000 + "x9"], "is not WIDTHxHEIGHT"),
        (["--clips", "panda70m", "--resolutions", "9"], "frame size '9' is not WIDTHxHEIGHT"),
        (
            ["--clips", "panda70m", "--resolutions", "8x8"],
            r"a resolution of 8 .* is below the model's smallest frame of 16x16 pixels; use at lea",
        ),
    ],
)
def test_what_cannot_work_is_said_in_one_line(run_file, capsys, verb, words, message):
    error = refusal(capsys, verb, run_file, "--cluster", "cpux2", *words)
    assert re.search(message, error), error


def test_sizes_are_refused_for_clips_that_have_their_own(run_file, tmp_path, capsys):
    name = manifest_at(tmp_path, row("a", "64x48x17"))
    words = ["plan", run_file, "--cluster", "cpux2", "--resolutions", "64x64"]
    assert "those of manifest" in refusal(capsys, *words, "--clips", name)
    (tmp_path / "nothing").mkdir()
    assert "those of the run's dataset" in refusal(capsys, *words)


def test_a_manifest_without_a_usable_clip_says_why(run_file, tmp_path, capsys):
    name = manifest_at(tmp_path, row("b", None))
    error = refusal(capsys, "plan", run_file, "--cluster", "cpux2", "--clips", name)
    assert "none of the 1 clips" in error
    assert "it is cursed" in error


def test_nobody_is_told_to_delete_a_damaged_manifest_that_only_clips_names(
    run_file, tmp_path, capsys
):
    damaged = tmp_path / "damaged.parquet"
    damaged.write_text("x")
    error = refusal(capsys, "plan", run_file, "--cluster", "cpux2", "--clips", str(damaged))
    assert error.endswith("; restore it from a copy, or name another with --clips\n")


def test_sizes_and_shares_are_told_as_they_train(run_file, capsys):
    words = ["--clips", "panda70m", "--cluster", "cpux2", "--steps", "1"]
    sizes = ["--resolutions", "161x97:.7,96x160:.5,8x8:.2"]
    assert main(["plan", run_file, *words, *sizes]) == 0
    assert (
        capsys.readouterr()
        .out.splitlines()[-1]
        .endswith("; sizes: 161x97 → 160x96 (50.0 %), 96x160 (35.7 %), 8x8 → none (14.3 %)")
    )


def test_a_manifest_of_another_model_is_refused(run_file, tmp_path, capsys):
    name = manifest_at(tmp_path, row("a", "64x48x18"))
    error = refusal(capsys, "plan", run_file, "--cluster", "cpux2", "--clips", name)
    assert f"manifest {name!r}: clip 'a': " in error
    assert "18 frames are not 4k+1; use 17 or 21; make the manifest for this model" in error


def test_a_manifest_with_an_illegal_width_names_itself_and_the_clip(run_file, tmp_path, capsys):
    name = manifest_at(tmp_path, row("a", "64x48x17"), row("b", "721x401x33"))
    for cap in ((), ("--frame-cap", "17")):
        error = refusal(capsys, "plan", run_file, "--cluster", "cpux2", "--clips", name, *cap)
        assert f"manifest {name!r}: clip 'b': bucket 721x401x" in error
        assert "width 721 is not a multiple of 16" in error


def test_clips_of_a_manifest_are_made_smaller_where_it_is_made(run_file, tmp_path, capsys):
    name = manifest_at(tmp_path, row("a", "8000x8000x401"))
    error = refusal(capsys, "plan", run_file, "--cluster", "cpux2", "--clips", name)
    assert f"lower --frame-cap or the data.resolution with which {name!r} is made" in error


def test_a_step_that_a_drawn_clip_overfills_names_the_options_that_made_it_large(run_file, capsys):
    words = (
        "plan",
        run_file,
        "--cluster",
        "cpux2",
        "--clips",
        "panda70m",
        "--set",
        "batch.clips=0",
    )
    drawn = ("--resolutions", "832x480", "--frame-cap", "33", "--set", "batch.tokens=100")
    assert ", or lower the sizes of --resolutions or --frame-cap" in refusal(capsys, *words, *drawn)


def epoch_words(run_file: str, epoch: int) -> list[str]:
    words = ["compare", run_file, "--cluster", "cpux2", "--clips", "panda70m", "--steps", "1"]
    return [*words, "--planners", "static_dp", "--epoch", str(epoch)]


def test_an_epoch_sets_bucket_systems_beside_the_planners(run_file, capsys):
    assert main([*epoch_words(run_file, 100), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["epoch"]

    assert set(rows) == {"arachne", "static_degree_longest_first", *EPOCH_PEERS}
    costs = [found["gpu_seconds_per_token"] for found in rows.values()]
    assert costs == sorted(costs)
    for found in rows.values():
        assert found["clips_trained"] + found["clips_dropped"] == 100
        assert found["cap_violations"] == 0
        assert 0.0 <= found["idle_ratio"] < 1.0
    assert rows["arachne"]["clips_dropped"] == 0
    assert rows["arachne"]["steps"] == 17  # of 6 clips, the last of 4
    assert (
        rows["arachne"]["gpu_seconds_per_token"]
        <= rows["static_degree_longest_first"]["gpu_seconds_per_token"]
    )


def test_the_epochs_table_and_page_have_a_row_for_each_system(run_file, tmp_path, capsys):
    page = tmp_path / "x.html"
    assert main([*epoch_words(run_file, 60), "--html", str(page)]) == 0

    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert "epoch of 60 clips, each system with its own batches" in lines
    assert {"arachne", "static_degree_longest_first", *EPOCH_PEERS} <= {
        line.partition(" ")[0] for line in lines
    }
    text = page.read_text(encoding="utf-8")
    assert all(f"<td>{name}</td>" in text for name in ("static_dp", "arachne", *EPOCH_PEERS))


def test_an_epoch_of_no_clips_or_of_too_many_is_refused(run_file, capsys):
    assert "--epoch is 0; it must be at least 1" in refusal(capsys, *epoch_words(run_file, 0))
    most = "--epoch is 10,000,000; it must be at most 1,000,000"
    assert most in refusal(capsys, *epoch_words(run_file, 10_000_000))


def test_a_pipeline_stands_apart_from_the_planners(run_file, tmp_path, capsys):
    page = tmp_path / "x.html"
    words = ["compare", run_file, "--cluster", "cpux2", "--clips", "panda70m", "--steps", "2"]
    words += ["--planners", "gpipe,arachne"]
    assert main([*words, "--json", "--html", str(page)]) == 0
    found = json.loads(capsys.readouterr().out)

    assert set(found["planners"]) == {"arachne"}
    gpipe = found["references"]["gpipe"]
    assert gpipe["ratio"] == pytest.approx(gpipe["step_s"] / found["planners"]["arachne"]["step_s"])
    assert gpipe["num_stages"] == 2
    assert gpipe["ideal_bubble_ratio"] <= gpipe["bubble_ratio"] < 1.0
    assert "gpipe (for reference: layers over GPUs" in page.read_text(encoding="utf-8")
    assert main(words) == 0
    assert "gpipe (for reference: layers over GPUs" in capsys.readouterr().out


def test_a_pipeline_has_no_place_for_encoders(run_file, capsys):
    words = ["compare", run_file, "--cluster", "h100x2", "--clips", "panda70m", "--steps", "1"]
    words += ["--planners", "gpipe", "--json"]
    for option in ("--encode", "--fill"):
        assert main([*words, option]) == 0
        gpipe = json.loads(capsys.readouterr().out)["references"]["gpipe"]
        assert gpipe["step_s"] is None
        assert "no place for encoders" in gpipe["failure"]


@pytest.mark.parametrize("verb", ["plan", "compare"])
def test_a_preset_stands_for_a_model_that_is_not_here_and_nothing_else_does(run_file, verb, capsys):
    missing = ["--set", "model.pretrained=/none", "--set", "model.text_encoder=/none"]
    words = [verb, run_file, "--cluster", "h100x8", "--clips", "panda70m", "--batch", "8", *missing]
    assert "model.pretrained '/none' does not exist" in refusal(capsys, *words)
    assert main([*words, "--set", "model.preset=wan-1.3b", "--steps", "1"]) == 0
    error = capsys.readouterr().err
    absent = "model.pretrained, model.video_encoder, model.text_encoder"
    assert f"not here: {absent}; planned with" in error


def test_how_many_gpus_a_run_s_cluster_has_is_asked_for(run_file, capsys):
    words = ["plan", run_file, "--clips", "panda70m", "--set", "cluster.name=h100"]
    assert "how many GPUs? add --cluster, for example --cluster h100x16" in refusal(capsys, *words)
