"""Slips of the hand: each is one line, found before anything heavy is imported."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from arachne.cli.main import main
from arachne.cli.run_dir import opened_run_dir, write_resolved
from arachne.core.errors import ConfigError
from arachne.core.strict_toml import load_toml
from arachne.trainer.config import RunConfig
from tests.trainer.tiny_runs import tiny_config


@pytest.fixture
def run_file(tmp_path):
    (tmp_path / "clips").mkdir()
    write_resolved(tiny_config(tmp_path / "clips", tmp_path / "run"), tmp_path / "run.toml")
    return tmp_path / "run.toml"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("run.seed=10000000000000000000000", "run.seed"),
        ("run.timeout_s=1e22", "run.timeout_s is 1e+22; it must be at most 1e+07"),
        ("run.timeout_s=inf", "run.timeout_s is inf; it must be at most"),
        ("model.num_heads=1000000", "model.num_heads is 1,000,000; it must be at most 10,000"),
        ("batch.clips=10000000", "batch.clips is 10,000,000; it must be at most 1,000,000"),
        ("planner.timeout_s=1e22", "planner.timeout_s"),
        ("validation.noises=1000000", "validation.noises"),
        ('run.dir=""', "run.dir is ''; name a folder"),
        ('data.cache=" "', "data.cache is ' '; name a folder"),
        ('data.path=""', "data.path is ''; name a folder"),
        ('run.dir="a\\u0000b"', "name a folder"),
        ("run.dir=s3://bucket/run", "run.dir is 's3://bucket/run', an address, to which nothing"),
        ("run.dir=s3:/bucket/run", "run.dir is 's3:/bucket/run', an address"),
        ("run.dir=zip::gs://b/x.zip", "an address, to which nothing is written; name a path"),
        ("run.dir=file:///tmp/run", "run.dir is 'file:///tmp/run', an address"),
        ("data.cache=hf://datasets/x", "data.cache is 'hf://datasets/x', an address"),
        ("objective.weighting=tokens", "choose 'clip' or 'token'"),
        ("model.dtype=float16", "choose 'float32', 'bfloat16' or 'float64'"),
        ("run.steps=5\nseed=3", "--set takes one setting"),
        (
            "lora={rank=2, init_from='/none'}",
            "'/none' does not exist; name an existing safetensors",
        ),
        ("model.pretrained=/none", "does not exist; name an existing folder or safetensors file"),
        ("model.video_encoder=/none", "does not exist; name 'dct' or an existing folder"),
        ("data.path=/none", "data.path '/none' does not exist; name an existing folder or file"),
        (
            "model.pretrained=Wan-AI/Wan2.1-T2V-1.3B-Diffusers",
            "hf download Wan-AI/Wan2.1-T2V-1.3B-Diffusers --local-dir",
        ),
        ("optimizer.learning_rate=1", "did you mean 'optimizer.lr'?"),
        ("optimizer.eps=0", "optimizer.eps is 0.0; it must be at least 1e-20"),
        ("run.sed=1", "--set run.sed: unknown setting 'run.sed'; did you mean 'run.seed'?"),
    ],
)
def test_a_slip_is_one_line(run_file, override, said, capsys):
    assert main(["train", str(run_file), "--set", override]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert "Traceback" not in error


def test_weights_of_another_model_are_refused_before_clips_are_listed(run_file, tmp_path, capsys):
    file = tmp_path / "model.safetensors"
    save_file({"img_in.proj.weight": np.zeros((3, 20, 1, 2, 2), np.float32)}, file)
    overrides = ("family=hunyuan_video", "preset=hunyuanvideo-13b", f"pretrained={file}")
    words = [word for each in overrides for word in ("--set", f"model.{each}")]
    for verb in ("train", "prepare"):
        assert main([verb, str(run_file), *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"model.pretrained '{file}' takes 20 channels, and model.preset 'hunyuan" in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "--ranks", "0"], "--ranks is 0; it must be at least 1"),
        (["train", "--ranks", "100000"], "--ranks is 100,000; it must be at most "),
        (["train", "--set", "run.ranks=100000"], "run.ranks is 100,000; it must be at most "),
        (["profile", "--ranks", "-1"], "--ranks is -1; it must be at least 1"),
        (["profile", "--output", "a.txt"], "--output 'a.txt' does not end in .toml; name it so"),
        (
            ["profile", "--output", "none/a.toml"],
            "cannot write 'none/a.toml': there is no folder 'none'; choose another",
        ),
        (
            ["profile", "--output", "folder.toml"],
            "cannot write 'folder.toml': it is a folder; name",
        ),
    ],
)
def test_counts_and_files_that_cannot_work_are_refused_before_any_work(
    run_file, words, said, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.toml").mkdir()
    verb, *options = words
    assert main([verb, str(run_file), *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"arachne: {said}")
    assert error.count("\n") == 1


def test_a_byte_order_mark_is_no_error(run_file):
    plain = load_toml(run_file, RunConfig)
    run_file.write_bytes(b"\xef\xbb\xbf" + run_file.read_bytes())
    assert load_toml(run_file, RunConfig) == plain


def test_two_trainings_in_one_folder_are_refused(tmp_path):
    config = tiny_config(tmp_path / "clips", tmp_path / "run")
    with (
        opened_run_dir(config, resume=False),
        pytest.raises(ConfigError, match=r"another process trains in run\.dir"),
        opened_run_dir(config, resume=False),
    ):
        pass
    with opened_run_dir(config, resume=False):
        pass


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "clips", "--html", "s3://b/page.html"],
        ["plan", "run.toml", "--html", "s3://b/page.html"],
        ["compare", "run.toml", "--html", "s3://b/page.html"],
        ["profile", "run.toml", "--output", "s3://b/machine.toml"],
        ["sample", "run", "--prompt", "x", "--output", "s3://b/x.mp4"],
        ["sample", "s3://b/run", "--prompt", "x"],
        ["export", "run", "s3://b/weights", "--to", "diffusers"],
        ["report", "run", "--output", "s3://b/report.html"],
        ["report", "s3://b/run"],
        ["checkpoints", "s3://b/run"],
        ["doctor", "--folder", "s3://b/run"],
        ["demo", "--dir", "s3://b/run"],
    ],
)
def test_nothing_is_written_to_an_address(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert f"it is {next(word for word in words if '://' in word)!r}, an address, to" in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == [], "least of all into a folder called s3:"
