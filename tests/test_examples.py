"""Examples: the memory that they promise is what `arachne plan` predicts; scripts parse."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from arachne.cli.main import main
from arachne.core.families import FAMILIES
from arachne.core.strict_toml import load_toml
from arachne.trainer.config import RunConfig

EXAMPLES = Path(__file__).parents[1] / "examples"
ALL_HERE = "plan-hunyuanvideo-13b.toml"
"""It names no folder of a model."""


def predicted(capsys: pytest.CaptureFixture[str], name: str, cluster: str, *more: str) -> dict:
    arguments = ["plan", str(EXAMPLES / name), "--clips", "panda70m", "--cluster", cluster]
    assert main([*arguments, "--memory", "--json", *more]) == 0
    printed = capsys.readouterr()
    assert ("planned with the sizes of preset" in printed.err) == (name != ALL_HERE)
    return json.loads(printed.out)


@pytest.mark.parametrize(
    ("name", "cluster"),
    [
        ("lora-wan-14b.toml", "rtx4090x1"),
        ("one-gpu.toml", "h100x1"),
        ("eight-gpus.toml", "h100x8"),
    ],
)
def test_an_example_is_predicted_to_fit_before_anything_is_loaded(capsys, name, cluster):
    memory = predicted(capsys, name, cluster)
    assert any(launch["fits"] for launch in memory["launches"]), memory
    assert not memory["advice"]


def test_a_lora_of_wan_14b_fits_24_gb_only_because_weights_and_inputs_wait_on_the_host(capsys):
    for setting in ("swapped_blocks=0", "inputs_on_host=false"):
        memory = predicted(capsys, "lora-wan-14b.toml", "rtx4090x1", f"--set=memory.{setting}")
        assert not any(launch["fits"] for launch in memory["launches"]), setting
    memory = predicted(capsys, "lora-wan-14b.toml", "rtx4090x1")
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


def test_the_families_that_the_quickstart_names_are_all_that_can_be_built():
    lines = (EXAMPLES / "quickstart.toml").read_text(encoding="utf-8").splitlines()

    def comment(setting: str) -> set[str]:
        text = next(line for line in lines if line.startswith(f"{setting} = ")).partition("#")[2]
        for name, rest in re.findall(r"(\w+)\(([^)]*)\)", text):
            names = [name, *(name + each.strip() for each in rest.split(","))]
            text = text.replace(f"{name}({rest})", " ".join(names))
        return set(re.findall(r"\w+", text)) & FAMILIES.keys()

    assert comment("family") | {"wan"} == set(FAMILIES)
    unable = {name for name, family in FAMILIES.items() if not family.has_image_to_video}
    found = re.search(r"image_to_video = false *# .*\(not (.*)\)", "\n".join(lines))
    assert found is not None
    assert set(re.split(", | and ", found[1])) == unable


@pytest.mark.parametrize("page", ["docs/training.md"])
def test_the_table_of_families_has_all_that_can_be_trained(page):
    text = (EXAMPLES.parent / page).read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.endswith("| yes |")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(FAMILIES)


def test_examples_and_pages_call_no_encoder_unbuilt_that_a_family_has():
    pages = [*EXAMPLES.rglob("*.*"), *EXAMPLES.parent.glob("docs/**/*.md")]
    for page in (each for each in pages if each.suffix in (".md", ".toml")):
        text = " ".join(page.read_text(encoding="utf-8").replace("#", " ").split())
        assert not re.search(r"encoder (that )?is not built", text), page
