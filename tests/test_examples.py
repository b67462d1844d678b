"""Examples: the memory that they promise is what `arachne plan` predicts; scripts parse."""

import json
import subprocess
from pathlib import Path

import pytest

from arachne.cli.main import main
from arachne.core.strict_toml import load_toml
from arachne.trainer.config import RunConfig

EXAMPLES = Path(__file__).parents[1] / "examples"
NO_WEIGHTS = (
    "--set=model.pretrained=",
    "--set=model.video_encoder=dct",
    "--set=model.text_encoder=hashed",
)


def predicted(capsys: pytest.CaptureFixture[str], name: str, cluster: str, *more: str) -> dict:
    arguments = ["plan", str(EXAMPLES / name), "--clips", "panda70m", "--cluster", cluster]
    assert main([*arguments, "--memory", "--json", *more]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("name", "cluster"),
    [
        ("lora-wan-14b.toml", "rtx4090x1"),
        ("one-gpu.toml", "h100x1"),
        ("eight-gpus.toml", "h100x8"),
    ],
)
def test_an_example_is_predicted_to_fit_before_anything_is_loaded(capsys, name, cluster):
    memory = predicted(capsys, name, cluster, *NO_WEIGHTS)
    assert any(launch["fits"] for launch in memory["launches"]), memory
    assert not memory["advice"]


def test_a_lora_of_wan_14b_fits_24_gb_only_because_weights_and_inputs_wait_on_the_host(capsys):
    for setting in ("swapped_blocks=0", "inputs_on_host=false"):
        memory = predicted(
            capsys, "lora-wan-14b.toml", "rtx4090x1", *NO_WEIGHTS, f"--set=memory.{setting}"
        )
        assert not any(launch["fits"] for launch in memory["launches"]), setting
    memory = predicted(capsys, "lora-wan-14b.toml", "rtx4090x1", *NO_WEIGHTS)
    assert memory["shape"] == "848x480x81"
    assert memory["memory_bytes"] < 24e9


def test_all_of_hunyuanvideo_13b_is_predicted_to_fit_16_gpus(capsys):
    memory = predicted(capsys, "plan-hunyuanvideo-13b.toml", "h100x16")
    assert any(launch["fits"] for launch in memory["launches"])


@pytest.mark.parametrize("script", sorted(EXAMPLES.rglob("*.sbatch")), ids=lambda path: path.name)
def test_a_script_parses_looks_at_machines_first_and_names_what_it_lacks(script):
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    text = script.read_text(encoding="utf-8")
    assert (
        text.index('arachne" doctor') < text.index("arachne doctor") < text.index("arachne train")
    )
    missing = subprocess.run(["bash", str(script)], capture_output=True, text=True, check=False)
    assert missing.returncode != 0
    assert "name the run file: sbatch" in missing.stderr


@pytest.mark.parametrize("run_file", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.name)
def test_an_example_names_a_cluster_that_is_known(run_file):
    from arachne.cost.cluster_files import cluster_names

    name = load_toml(run_file, RunConfig).cluster.name
    assert name == "auto" or name in cluster_names()
