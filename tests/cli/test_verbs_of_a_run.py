"""`arachne profile`, `sample` and `export` on a tiny dataset and its run."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from diffusers import WanTransformer3DModel
from diffusers.loaders.single_file_utils import convert_wan_transformer_to_diffusers
from safetensors.torch import load_file

from arachne.cli.main import main
from arachne.cli.run_dir import write_resolved
from arachne.cost.cluster_files import load_cluster
from arachne.trainer.checkpoint_reader import CheckpointReader, newest
from tests.forbidden_files import forbidden
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

    errors = capsys.readouterr().out.splitlines()[-2]
    assert re.fullmatch(
        r"\|predicted / measured - 1\| over \d+ launches: median [\d.]+ %, "
        r"95th percentile [\d.]+ %; \d+ outliers?",
        errors,
    )
    assert f"# {errors}\n" in path.read_text()
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
        (["--steps", "1000000"], "--steps is 1,000,000; it must be at most 10,000"),
        (["--guidance", "nan"], "--guidance is nan; it must be 0 or more, and finite"),
        (["--seed", "99999999999999999999"], "--seed is 99999999999999999999; it must be 0"),
        (["--output", "a.png"], "--output 'a.png' does not end in .mp4"),
        (["--checkpoint", "7"], "there is no checkpoint of step 7; found: step-000002"),
        (["--image", "a.png"], "this run trains text to video, which begins with no picture"),
    ],
)
def test_sample_refuses_in_one_line(run_dir, words, said, capsys):
    assert main(["sample", str(run_dir), "--prompt", "x", *words]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


@pytest.mark.distributed
def test_a_run_without_its_ledger_asks_for_a_size(run_dir, tmp_path, capsys):
    moved = shutil.copytree(run_dir, tmp_path / "run")
    (moved / "ledger.parquet").unlink()
    assert main(["sample", str(moved), "--prompt", "x"]) == 2
    assert "has no ledger.parquet, which tells the run's usual" in capsys.readouterr().err


@pytest.mark.distributed
@pytest.mark.parametrize("name", ["samples", "run.resolved.toml", "checkpoints", "."])
def test_what_sample_may_not_read_is_one_line_before_the_work(run_dir, tmp_path, capsys, name):
    moved = shutil.copytree(run_dir, tmp_path / "run")
    (moved / "samples").mkdir(exist_ok=True)
    with forbidden(moved / name):
        assert main(["sample", str(moved), "--prompt", "x"]) == 2
    printed = capsys.readouterr()
    assert str(moved / name) in printed.err
    assert "Permission denied" in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


@pytest.mark.distributed
def test_a_checkpoint_that_may_not_be_read_is_passed_over(run_dir, tmp_path, capsys):
    moved = shutil.copytree(run_dir, tmp_path / "run")
    newer = shutil.copytree(
        moved / "checkpoints/step-000002", moved / "checkpoints/step-000003", copy_function=os.link
    )
    with forbidden(newer):
        words = ["export", str(moved), str(tmp_path / "out"), "--to", "diffusers"]
        assert main(words) == 0
    printed = capsys.readouterr().out
    assert "skipped: checkpoint step-000003: cannot be read: " in printed
    assert "step-000002: " in printed


def test_sample_needs_a_run(tmp_path, capsys):
    assert main(["sample", str(tmp_path), "--prompt", "x"]) == 2
    assert "is not a run: it has no run.resolved.toml" in capsys.readouterr().err


def masters(run_dir):
    reader = CheckpointReader(newest(run_dir, on_skip=print))
    return {
        name: torch.from_numpy(reader.read(name, "master", 0, torch.Size(shape).numel())).view(
            shape
        )
        for name, shape in reader.parameters.items()
    }


def assert_equal_weights(found, needed):
    assert found.keys() == needed.keys()
    assert all(torch.equal(found[name], needed[name]) for name in needed)


@pytest.mark.distributed
def test_diffusers_loads_what_export_wrote(run_dir, tmp_path, capsys):
    words = ["export", str(run_dir), str(tmp_path / "out"), "--to", "diffusers"]

    assert main([*words, "--max-shard-size", "20KB"]) == 0

    assert re.search(r"step-000002: .* in float32; written", capsys.readouterr().out)
    folder = tmp_path / "out" / "transformer"
    assert (folder / "diffusion_pytorch_model.safetensors.index.json").is_file()
    model, info = WanTransformer3DModel.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert_equal_weights(dict(model.named_parameters()), masters(run_dir))
    assert main(words) == 2
    assert "exists and is not empty" in capsys.readouterr().err


def test_a_shard_size_that_is_none_is_refused_in_one_line(tmp_path, capsys):
    words = ["export", str(tmp_path), str(tmp_path / "out"), "--to", "diffusers"]
    for size in ("big", "0GB", "-1GB", "5"):
        assert main([*words, f"--max-shard-size={size}"]) == 2
        assert f"--max-shard-size {size!r} is no size; write" in capsys.readouterr().err


@pytest.mark.distributed
def test_comfyui_gets_the_published_names(run_dir, tmp_path):
    words = ["export", str(run_dir), str(tmp_path / "out"), "--to", "comfyui"]

    assert main([*words, "--dtype", "bfloat16", "--checkpoint", "2"]) == 0

    published = load_file(tmp_path / "out" / "diffusion_model.safetensors")
    assert {
        "patch_embedding.weight",
        "time_embedding.0.weight",
        "text_embedding.2.bias",
        "time_projection.1.weight",
        "blocks.0.modulation",
        "blocks.0.self_attn.norm_q.weight",
        "blocks.0.cross_attn.o.bias",
        "blocks.0.norm3.weight",
        "blocks.0.ffn.2.weight",
        "head.head.weight",
        "head.modulation",
    } <= published.keys()
    back = convert_wan_transformer_to_diffusers(dict(published))
    needed = {name: value.bfloat16() for name, value in masters(run_dir).items()}
    assert_equal_weights(back, needed)


@pytest.mark.distributed
def test_an_export_that_reads_back_otherwise_leaves_nothing(run_dir, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        "arachne.trainer.export.load_file",
        lambda path: {name: value + 1 for name, value in load_file(path).items()},
    )

    assert main(["export", str(run_dir), str(tmp_path / "out"), "--to", "comfyui"]) == 2

    assert "reads back with another" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
