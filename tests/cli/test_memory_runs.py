"""Whole runs with `[memory]`: trained on two ranks, resumed on one, sampled and exported."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from arachne.cli.main import main
from arachne.cli.run_dir import write_resolved
from arachne.reporting.run_files import read_metrics
from arachne.trainer.settings.lora import LoraSettings
from tests.trainer.test_lora_runs import pretrained_folder
from tests.trainer.tiny_runs import changed, make_clips, tiny_config

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with clips, and with a pretrained model in diffusers' layout."""
    folder = tmp_path_factory.mktemp("memory")
    make_clips(folder / "clips")
    pretrained_folder(folder / "base", seed=1)
    return folder


def losses_of(made: Path, run_dir: Path, recompute: Any, **memory: Any) -> list[float | None]:
    """Of one step on two ranks and of another on one, which resumes."""
    config = tiny_config(made / "clips", run_dir, steps=1, dtype="float32")
    config = changed(config, "model", pretrained=str(made / "base"))
    config = replace(config, lora=LoraSettings(rank=2, targets="attention"))
    config = changed(changed(config, "planner", recompute=recompute), "memory", **memory)
    config = changed(config, "optimizer", lr=0.05)
    run_file = run_dir.with_suffix(".toml")
    write_resolved(config, run_file)
    assert main(["train", str(run_file), "--ranks", "2"]) == 0
    words = ["train", str(run_file), "--ranks", "1", "--resume", "--set", "run.steps=2"]
    assert main(words) == 0
    return [row.loss for row in read_metrics(run_dir).train]


def test_a_lora_on_float8_weights_trains_resumes_and_merges_into_the_weights_as_they_were(
    made, tmp_path
):
    losses = losses_of(made, tmp_path / "run", "none", base="fp8")
    assert len(losses) == 2
    assert None not in losses

    words = ["export", str(tmp_path / "run"), str(tmp_path / "out"), "--to", "diffusers"]
    assert main([*words, "--what", "merged"]) == 0
    base, merged = (
        load_file(folder / "transformer" / "diffusion_pytorch_model.safetensors")
        for folder in (made / "base", tmp_path / "out")
    )
    adapted, stored = "blocks.0.attn1.to_q.weight", "blocks.0.ffn.net.2.weight"
    assert not merged[adapted].equal(base[adapted])
    assert merged[stored].equal(base[stored]), "no rounding to float8 is left"


@pytest.mark.slow
def test_blocks_and_inputs_on_the_host_change_no_loss(made, tmp_path):
    plain = losses_of(made, tmp_path / "plain", "none")
    memory = {"swapped_blocks": 40, "inputs_on_host": True}
    swapped = losses_of(made, tmp_path / "swapped", "all", **memory)
    assert swapped == pytest.approx(plain, rel=1e-5)
