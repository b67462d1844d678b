"""Settings that do nothing beside others are said in one line, whichever section they are in."""

from pathlib import Path

import pytest

from arachne.cli.doctor_of_run import findings_of_run
from arachne.cli.main import main
from arachne.core.strict_toml import load_toml
from arachne.trainer.config import RunConfig
from arachne.trainer.ignored_settings import ignored_settings

EXAMPLES = Path(__file__).parents[2] / "examples"

PROMPTS = 'validation.prompts=["a cat"]'


@pytest.fixture
def path(tmp_path):
    (tmp_path / "weights").mkdir()
    (tmp_path / "file.safetensors").write_bytes(b"")
    (tmp_path / "run.toml").write_text(
        f"""
[run]
dir = "{tmp_path / "run"}"
steps = 10

[data]
path = "{tmp_path / "clips"}"
cache = "{tmp_path / "cache"}"

[model]
preset = "wan-1.3b"
"""
    )
    return tmp_path / "run.toml"


def lines(path, *overrides):
    return ignored_settings(load_toml(path, RunConfig, overrides=list(overrides)))


@pytest.mark.parametrize(
    ("ignored", "needed", "line"),
    [
        (
            PROMPTS,
            ("validation.sample_every=5", "validation.sample_shape=32x32x5"),
            "validation.prompts does nothing here; leave it out, or set validation.sample_every to "
            "the steps between two drawings",
        ),
        (
            "validation.clips=8",
            ("validation.every=5",),
            "validation.clips does nothing here; leave it out, or set validation.every to the "
            "steps between two validations",
        ),
        (
            "data.cache_online=false",
            ("data.encode=online",),
            "data.cache_online does nothing here; leave it out, or set data.encode = 'online'",
        ),
        (
            "planner.fill=false",
            ("data.encode=online",),
            "planner.fill does nothing here; leave it out, or set data.encode = 'online'",
        ),
        (
            "lora.targets=all-linear",
            ("lora.rank=4",),
            "lora.targets does nothing here; leave it out, or set lora.rank",
        ),
    ],
)
def test_a_setting_that_does_nothing_is_said_until_what_it_needs_is_set(
    path, ignored, needed, line
):
    assert lines(path, ignored) == (line,)
    assert lines(path, ignored, *needed) == ()


@pytest.mark.parametrize(
    ("ignored", "by", "line"),
    [
        (
            "planner.iterations=9",
            "planner.budget_s=2.0",
            "planner.iterations does nothing here; leave it out, or set planner.budget_s to 0",
        ),
        (
            "checkpoint.keep_every=50",
            "checkpoint.keep=0",
            "checkpoint.keep_every does nothing here; leave it out, or set checkpoint.keep above "
            "0, which keeps all",
        ),
        (
            "optimizer.decay_1d=false",
            "optimizer.weight_decay=0.0",
            "optimizer.decay_1d does nothing here; leave it out, or set optimizer.weight_decay",
        ),
        (
            "data.frame_buckets=[1, 5]",
            "data.frame_extraction=full",
            "data.frame_buckets does nothing here; leave it out, or set another "
            "data.frame_extraction than 'full', which takes data.max_frames",
        ),
    ],
)
def test_a_setting_that_another_one_takes_the_place_of_is_said(path, ignored, by, line):
    assert lines(path, by) == lines(path, ignored) == ()
    assert lines(path, ignored, by) == (line,)


def test_sizes_beside_weights_that_bring_their_own_are_said(path):
    sizes = ("model.num_layers=2", "model.head_size=64")
    leave = "leave out model.pretrained, which brings its own"
    assert lines(path, *sizes) == ()
    folder, file = path.parent / "weights", path.parent / "file.safetensors"
    assert lines(path, *sizes, f"model.pretrained={folder}") == (
        f"model.num_layers and model.head_size do nothing here; leave them out, or {leave}",
    )
    # A file with Wan's names does not tell the width of a head; planning does without either.
    assert lines(path, *sizes, f"model.pretrained={file}") == (
        f"model.num_layers does nothing here; leave it out, or {leave}",
    )
    assert lines(path, *sizes, f"model.pretrained={path.parent / 'away'}") == ()


def test_several_of_one_kind_are_one_line(path):
    (line,) = lines(path, PROMPTS, "validation.guidance=3.0", "validation.sample_steps=4")
    assert line.startswith(
        "validation.prompts and validation.sample_steps and validation.guidance do nothing here; "
        "leave them out, or set validation.sample_every"
    )


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.name)
def test_examples_set_nothing_in_vain(example):
    assert ignored_settings(load_toml(example, RunConfig)) == ()


def test_verbs_with_a_run_file_say_it_once_and_doctor_warns(path, capfd, monkeypatch):
    words = ["plan", str(path), "--set", PROMPTS, "--clips", "panda70m", "--cluster", "h100x2"]
    assert main([*words, "--steps", "1", "--batch", "2"]) == 0
    said = [line for line in capfd.readouterr().err.splitlines() if "validation" in line]
    assert said == [f"arachne: {line}" for line in lines(path, PROMPTS)]
    monkeypatch.setenv("RANK", "1")  # torchrun's first process speaks for all
    assert main([*words, "--steps", "1", "--batch", "2"]) == 0
    assert "validation" not in capfd.readouterr().err


def test_doctor_warns(path):
    config = load_toml(path, RunConfig, overrides=[PROMPTS])
    found = [each for each in findings_of_run(config, []) if each.verdict == "warning"]
    assert ("validation.prompts does nothing here", True) in [
        (each.found, each.fix.startswith("leave it out, or set validation.sample_every"))
        for each in found
    ]
