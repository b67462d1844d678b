from pathlib import Path

import pytest

from arachne.core.errors import ConfigError
from arachne.cost.cluster_files import (
    cluster_file_text,
    cluster_names,
    load_cluster,
    machine_cluster,
)


@pytest.mark.parametrize("name", cluster_names())
def test_every_shipped_cluster_is_plausible(name: str):
    cluster = load_cluster(f"{name}x1")
    device = cluster.device

    assert 1e9 < device.attention_flops_per_s <= device.matmul_flops_per_s < 1e16
    assert 1e9 < device.memory_bytes < 1e12
    link, network = cluster.intra_node, cluster.inter_node
    assert link.bandwidth_bytes_per_s > network.bandwidth_bytes_per_s > 0.0


@pytest.mark.parametrize(
    ("name", "nodes", "gpus"), [("h100x16", 2, 8), ("h100x8", 1, 8), ("h100x3", 1, 3)]
)
def test_gpus_fill_nodes(name: str, nodes: int, gpus: int):
    cluster = load_cluster(name)

    assert (cluster.num_nodes, cluster.gpus_per_node, cluster.name) == (nodes, gpus, name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("h100", r"'h100' is not NAMExGPUS; write for example h100x16; known names: a100-40g, "),
        ("h100x0", "is not NAMExGPUS"),
        ("h10x8", r"called 'h10'; did you mean 'h100'\?; known names: .*write NAMExGPUS"),
        ("../h100x8", "no cluster file is called"),
        ("h100x12", "12 GPUs do not fill nodes of 8; use 8 or 16"),
        ("gone.tomlx8", "no cluster file 'gone.toml'; `arachne profile` writes one"),
    ],
)
def test_a_wrong_name_says_what_would_be_right(name: str, message: str):
    with pytest.raises(ConfigError, match=message):
        load_cluster(name)


def test_a_written_cluster_file_reads_back(tmp_path: Path):
    path = tmp_path / "mine.toml"
    path.write_text(cluster_file_text(load_cluster("h100x8"), comment="two\nlines"))

    cluster = load_cluster(f"{path}x8")

    assert cluster.device == load_cluster("h100x8").device
    assert cluster.intra_node == load_cluster("h100x8").intra_node
    assert cluster.inter_node == load_cluster("h100x8").inter_node


def test_a_mistyped_key_in_a_cluster_file_is_named(tmp_path: Path):
    path = tmp_path / "mine.toml"
    text = cluster_file_text(load_cluster("h100x8"), comment="x").replace("launch_s", "lanch_s")
    path.write_text(text)

    with pytest.raises(ConfigError, match=r"device.lanch_s'; did you mean 'device.launch_s'"):
        load_cluster(f"{path}x8")


def test_this_machine_is_described_by_its_ranks():
    cluster = machine_cluster(4, ranks_per_node=2, device_name="mine", memory_bytes=1e9)

    assert (cluster.num_nodes, cluster.gpus_per_node) == (2, 2)
    assert (cluster.device.name, cluster.device.memory_bytes) == ("mine", 1e9)
    with pytest.raises(ConfigError, match="5 ranks do not fill machines of 2"):
        machine_cluster(5, ranks_per_node=2)
