"""`arachne train`, `sample`, `export` and `train --resume` of a run with `[lora]`."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from arachne.cli import run_file
from arachne.cli.main import main
from arachne.cli.run_dir import write_resolved
from arachne.reporting.run_files import RESOLVED_CONFIG as RESOLVED
from arachne.reporting.run_files import read_metrics
from arachne.trainer.settings.lora import LoraSettings
from tests.trainer.test_lora_runs import pretrained_folder
from tests.trainer.tiny_runs import changed, make_clips, tiny_config


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    """A run that trained a LoRA for one step on two ranks; `run.toml` lies beside it."""
    folder = tmp_path_factory.mktemp("lora-verbs")
    config = tiny_config(make_clips(folder / "clips"), folder / "run", steps=1, dtype="float32")
    config = replace(changed(config, "run", ranks=2), lora=LoraSettings(rank=2, alpha=4.0))
    write_resolved(config, folder / "run.toml")
    assert main(["train", str(folder / "run.toml")]) == 0
    return folder / "run"


@pytest.mark.distributed
def test_a_lora_run_is_sampled_and_exported(run_dir, tmp_path, capsys):
    words = ["sample", str(run_dir), "--prompt", "x", "--size", "32x32x5", "--steps", "1"]
    assert main(words) == 0
    assert main(["export", str(run_dir), str(tmp_path / "lora"), "--to", "comfyui"]) == 0
    assert "768 trained parameters, in float32; written, read back" in capsys.readouterr().out
    assert len(load_file(tmp_path / "lora" / "lora.safetensors")) == 8 * 3
    words = ["export", str(run_dir), str(tmp_path / "all"), "--to", "diffusers"]
    assert main([*words, "--what", "merged"]) == 0
    assert (tmp_path / "all" / "transformer" / "config.json").is_file()


@pytest.mark.distributed
def test_a_lora_run_is_resumed_with_its_own_settings_only(run_dir, capsys):
    words = ["train", str(run_dir.parent / "run.toml"), "--resume", "--set", "run.steps=2"]
    assert main([*words, "--set", "lora.alpha=1.0"]) == 2
    assert "lora.alpha is 1.0, but the run to resume has 4.0" in capsys.readouterr().err
    assert main(words) == 0


@pytest.mark.distributed
def test_what_a_lora_run_lacks_is_said_before_torch_is_imported(run_dir, monkeypatch, capsys):
    path = str(run_dir.parent / "run.toml")
    elsewhere = f"run.dir={run_dir.parent / 'elsewhere'}"
    assert main(["train", path, "--set", elsewhere, "--set", "lora.init_from=nowhere"]) == 2
    assert "lora.init_from 'nowhere' does not exist" in capsys.readouterr().err
    monkeypatch.setattr(run_file, "find_spec", lambda name: None)
    assert main(["train", path]) == 2
    assert "needs the package peft, which is not installed; pip install" in capsys.readouterr().err


@pytest.mark.distributed
def test_a_base_that_was_moved_is_named_anew_and_compared_by_its_bytes(tmp_path, capsys):
    base = pretrained_folder(tmp_path / "base", seed=1)
    config = tiny_config(make_clips(tmp_path / "clips"), tmp_path / "run", steps=1, dtype="float32")
    config = replace(changed(config, "run", ranks=1), lora=LoraSettings(rank=2, alpha=4.0))
    write_resolved(changed(config, "model", pretrained=str(base)), tmp_path / "run.toml")
    assert main(["train", str(tmp_path / "run.toml")]) == 0
    moved = base.rename(tmp_path / "moved")
    (moved / "transformer" / ".DS_Store").touch()
    other = pretrained_folder(tmp_path / "other", seed=2)

    resume = ["train", str(tmp_path / "run.toml"), "--resume", "--set", "run.steps=2"]
    assert main([*resume, "--set", f"model.pretrained={other}"]) == 2
    assert "was trained on files" in capsys.readouterr().err
    assert main([*resume, "--set", f"model.pretrained={moved}"]) == 0
    write_resolved(changed(config, "model", pretrained=str(base)), tmp_path / "run" / RESOLVED)

    export = ["export", str(tmp_path / "run"), str(tmp_path / "lora"), "--to", "diffusers"]
    assert main(export) == 2
    assert f"model.pretrained '{base}'" in capsys.readouterr().err
    assert main([*export, "--set", f"model.pretrained={other}"]) == 2
    assert "was trained on files" in capsys.readouterr().err
    assert main([*export, "--set", f"model.pretrained={moved}", "--set", "lora.alpha=1"]) == 2
    assert "--set lora.alpha=1 is none of what may change after" in capsys.readouterr().err
    assert main([*export, "--set", f"model.pretrained={moved}"]) == 0
    assert len({path.stat().st_mode for path in (tmp_path / "lora").iterdir()}) == 1
    words = ["sample", str(tmp_path / "run"), "--prompt", "x", "--size", "32x32x5", "--steps", "1"]
    assert main([*words, "--set", f"model.pretrained={moved}"]) == 0


@pytest.mark.distributed
def test_a_run_goes_on_without_the_lora_that_it_began_with(run_dir, tmp_path, capsys):
    assert main(["export", str(run_dir), str(tmp_path / "lora"), "--to", "diffusers"]) == 0
    words = ["train", str(run_dir.parent / "run.toml"), "--set", f"run.dir={tmp_path / 'run'}"]
    words += ["--set", f"lora.init_from={tmp_path / 'lora'}"]
    assert main(words) == 0
    shutil.rmtree(tmp_path / "lora")
    assert main([*words, "--resume", "--set", "run.steps=3"]) == 0
    assert main([*words[:-2], "--resume", "--set", "run.steps=4"]) == 0
    assert [row.step for row in read_metrics(tmp_path / "run").train] == [0, 1, 2, 3]
    capsys.readouterr()


@pytest.mark.distributed
def test_a_run_in_which_every_step_was_skipped_fails(tmp_path, capfd):
    base = pretrained_folder(tmp_path / "base", seed=1)
    file = base / "transformer" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(file)
    next(iter(tensors.values())).fill_(torch.nan)
    save_file(tensors, file, {"format": "pt"})
    config = tiny_config(make_clips(tmp_path / "clips"), tmp_path / "run", steps=2, dtype="float32")
    config = changed(changed(config, "model", pretrained=str(base)), "run", ranks=1)
    write_resolved(config, tmp_path / "run.toml")
    assert main(["train", str(tmp_path / "run.toml")]) == 2
    printed = capfd.readouterr()
    assert "done: 2 steps, 2 of them skipped" in printed.out
    assert "none of 2 steps changed the weights" in printed.err
