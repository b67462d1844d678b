"""`arachne train`, `sample`, `export` and `train --resume` of a run with `[lora]`."""

from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

from arachne.cli import run_file
from arachne.cli.main import main
from arachne.cli.run_dir import write_resolved
from arachne.trainer.settings.lora import LoraSettings
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
    assert main(["train", path, "--set", "lora.init_from=nowhere"]) == 2
    assert "lora.init_from 'nowhere' does not exist" in capsys.readouterr().err
    monkeypatch.setattr(run_file, "find_spec", lambda name: None)
    assert main(["train", path]) == 2
    assert "needs the package peft, which is not installed; pip install" in capsys.readouterr().err
