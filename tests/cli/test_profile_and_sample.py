"""`arachne profile` and `arachne sample` on a tiny dataset and its run."""

import json
from pathlib import Path

import pytest

from arachne.cli.main import main
from arachne.cli.run_dir import write_resolved
from arachne.cost.cluster_files import load_cluster
from tests.trainer.tiny_runs import changed, make_clips, tiny_config


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    """A run that trained two steps on two ranks; `run.toml` lies beside it."""
    folder = tmp_path_factory.mktemp("verbs")
    config = tiny_config(make_clips(folder / "clips"), folder / "run", steps=2, dtype="float32")
    write_resolved(changed(config, "run", ranks=2), folder / "run.toml")
    assert main(["train", str(folder / "run.toml")]) == 0
    return folder / "run"


@pytest.mark.distributed
def test_profile_writes_a_cluster_file_that_plan_takes(run_dir, tmp_path, capsys):
    path = tmp_path / "mine.toml"

    assert main(["profile", str(run_dir.parent / "run.toml"), "--output", str(path)]) == 0

    assert "median" in capsys.readouterr().out
    assert load_cluster(f"{path}x2").num_gpus == 2
    words = ["plan", str(run_dir.parent / "run.toml"), "--cluster", f"{path}x4", "--json"]
    assert main([*words, "--steps", "2"]) == 0
    assert len(json.loads(capsys.readouterr().out.splitlines()[-1])["steps"]) == 2


@pytest.mark.distributed
def test_sample_writes_a_video_and_never_overwrites_one(run_dir, capsys):
    words = ["sample", str(run_dir), "--prompt", "this is a", "--steps", "2"]

    assert main(words) == 0
    assert main([*words, "--size", "48x32x5", "--guidance", "1"]) == 0

    names = sorted(path.name for path in (run_dir / "samples").iterdir())
    assert names == [
        "this-is-a-seed0-1.mp4",
        "this-is-a-seed0-1.png",
        "this-is-a-seed0.mp4",
        "this-is-a-seed0.png",
    ]


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--size", "50x32x5"], "width 50 is not a multiple of 16; use 48 or 64"),
        (["--size", "48x32x6"], "6 frames are not 4k+1; use 5 or 9"),
        (["--size", "tall"], "not WIDTHxHEIGHTxFRAMES"),
        (["--steps", "0"], "--steps is 0"),
        (["--checkpoint", "7"], "there is no checkpoint of step 7; found: step-000002"),
    ],
)
def test_sample_refuses_in_one_line(run_dir, words, said, capsys):
    assert main(["sample", str(run_dir), "--prompt", "x", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_sample_needs_a_run(tmp_path, capsys):
    assert main(["sample", str(tmp_path), "--prompt", "x"]) == 2
    assert "is not a run: it has no run.resolved.toml" in capsys.readouterr().err
