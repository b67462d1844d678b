from dataclasses import replace
from pathlib import Path

import pytest

from arachne.core.cluster import Cluster
from arachne.core.errors import ConfigError
from arachne.cost.cluster_files import (
    cluster_file_text,
    cluster_names,
    cluster_on_machines,
    load_cluster,
    machine_cluster,
)
from arachne.cost.mixed_clusters import joined


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
        ("h100x٣", "'h100x٣' is not NAMExGPUS"),
        ("h100x8+h100x٨", r"'h100x8\+h100x٨' is not NAMExGPUS"),
        ("h100x1000000", "'h100x1000000' has more than 32,768 GPUs, the most that are planned for"),
        ("h100x" + "9" * 5000, "'h100x9{75}…' has more than 32,768 GPUs, .*; name fewer"),
        ("h100x32768+h100x8", r"'h100x32768\+h100x8' has more than 32,768 GPUs"),
        ("f" * 5000 + ".tomlx8", "cannot read '.*File name too long.*; name a readable file"),
        ("h10x8", r"called 'h10'; did you mean 'h100'\?; known names: .*write NAMExGPUS"),
        ("../h100x8", "no cluster file is called"),
        ("h100x12", "12 GPUs do not fill nodes of 8; use 8 or 16"),
        ("gone.tomlx8", "no cluster file 'gone.toml'; `arachne profile` writes one"),
        ("h100x8+", "'h100x8\\+' is not NAMExGPUS"),
        ("h100x8+a100-80g", "'h100x8\\+a100-80g' is not NAMExGPUS"),
        ("h100x8+a10-80gx8", "called 'a10-80g'; did you mean 'a100-80g'"),
        ("h100x8+rtx4090x4", "joins nodes of 4 and 8 GPUs; all nodes of a cluster have equally"),
    ],
)
def test_a_wrong_name_says_what_would_be_right(name: str, message: str):
    with pytest.raises(ConfigError, match=message):
        load_cluster(name)


UNEVEN = replace(
    load_cluster("h100x8"), nics_per_node=4, speeds=(1.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.25)
)


@pytest.mark.parametrize("written", [load_cluster("h100x8"), machine_cluster(3), UNEVEN])
def test_a_written_cluster_file_reads_back(written: Cluster, tmp_path: Path):
    path = tmp_path / "a+mine.toml"
    path.write_text(cluster_file_text(written, comment="two\nlines"))

    read = load_cluster(f"{path}x{written.num_gpus}")

    assert replace(read, name=written.name) == written


def test_every_node_has_the_speeds_of_the_file_and_a_smaller_node_its_first(tmp_path: Path):
    path = tmp_path / "mine.toml"
    path.write_text(cluster_file_text(UNEVEN, comment="x"))

    assert load_cluster(f"{path}x16").speeds == UNEVEN.speeds * 2
    assert load_cluster(f"{path}x2").speeds == (1.0, 0.5)
    assert cluster_file_text(load_cluster(f"{path}x16"), comment="x") == path.read_text()


def test_nodes_of_different_speeds_are_not_written_as_one_node():
    with pytest.raises(ConfigError, match=r"nodes of different speeds, .* join them by name"):
        cluster_file_text(load_cluster("h100x8+a100-80gx8"), comment="x")


@pytest.mark.parametrize(
    ("line", "wrong", "message"),
    [
        ("gpus_per_node = 8", "gpus_per_node = 0", "gpus_per_node is 0; a node has at least one"),
        ("gpus_per_node = 8", "gpus_per_node = 999999", "a node has .* at most 32,768"),
        ("nics_per_node = 4", "nics_per_node = -1", "nics_per_node is -1; write a count, or 0"),
        ("[1.0, 0.5, ", "[1.0, ", "speeds has 7 values for 8 GPUs; write one for each GPU"),
        ("0.25]", "1.25]", r"speeds has 1.25; the fastest GPU has 1"),
        ("0.25]", "0.0]", r"speeds has 0.0; the fastest GPU has 1"),
        ("0.25]", "1e-300]", r"speeds has 1e-300; the fastest GPU has 1, .* at least 1e-06"),
        (
            "[1.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, ",
            f"[{'0.5, ' * 7}",
            "speeds has none above 0.5; the",
        ),
        ("layer_s = 0.0005", "layer_s = -1.0", r"device.layer_s is -1.0; it has to be 0 to 1e\+06"),
        ("memory_bytes = 7", "memory_bytes = -7", "device.memory_bytes is -7.*; .* 1 to 1e"),
        ("latency_s = 2e-05", "latency_s = nan", "intra_node.latency_s is nan; it has to be 0 to"),
        ("_per_s = 40000000000.0", "_per_s = 0.0", r"inter_node.bandwidth_bytes_per_s is 0.0; .*"),
        ("matmul_flops_per_s = 6", "matmul_flops_per_s = 1e-300 # 6", "is 1e-300; .* 1000 to 1e"),
        ("half_rate_tokens = 5", "half_rate_tokens = 1e308 # 5", r"is 1e\+308; .* 0 to 1e\+09"),
        (
            "launch_s = 0.005",
            "",
            "missing setting 'device.launch_s'; add it, a number, as 1.5 or 2e9",
        ),
        ("launch_s = 0.005", "launch_s = '5'", "expected float, got str; write a number, as 1.5"),
        ("[inter_node]", "[inter_node.x]", "cluster file '.*unknown setting 'inter_node.x'"),
        ("gpus_per_node = 8", "gpus_per_node = " + "9" * 5000, "too many digits"),
        ("gpus_per_node = 8", "gpus_per_node = " + "[" * 5000, "nested too deeply"),
    ],
)
def test_a_figure_that_cannot_be_is_refused(line: str, wrong: str, message: str, tmp_path: Path):
    path = tmp_path / "mine.toml"
    text = cluster_file_text(UNEVEN, comment="x")
    assert line in text
    path.write_text(text.replace(line, wrong))

    with pytest.raises(ConfigError, match=message) as refusal:
        load_cluster(f"{path}x8")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"gpus_per_node = 8 # \xff", r"mine.toml': 'utf-8' codec .*; save it as UTF-8"),
        (b"gpus_per_node 8", "cannot read '.*mine.toml' as TOML: Expected '=' after a key"),
        (None, "mine.toml' is a folder; name a TOML file"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(content, message: str, tmp_path: Path):
    path = tmp_path / "mine.toml"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)

    with pytest.raises(ConfigError, match=message) as refusal:
        load_cluster(f"{path}x8")
    assert "\n" not in str(refusal.value)


def test_a_byte_order_mark_is_no_setting(tmp_path: Path):
    path = tmp_path / "mine.toml"
    path.write_text(cluster_file_text(UNEVEN, comment="x"), encoding="utf-8-sig")

    assert load_cluster(f"{path}x8").speeds == UNEVEN.speeds


@pytest.mark.parametrize("name", ["h100x8+a100-80gx16", "a100-80gx8+h100x16", "h200x8+h100x16"])
def test_joined_clusters_have_all_nodes_and_promise_no_more_than_their_parts(name: str):
    whole = load_cluster(name)
    parts = [load_cluster(part) for part in name.split("+")]

    assert (whole.name, whole.num_nodes, whole.gpus_per_node) == (name, 3, 8)
    rank = 0
    for part in parts:
        for _ in range(part.num_gpus):
            speed = whole.speed_of(rank)
            for rate in ("matmul_flops_per_s", "attention_flops_per_s", "memory_bytes_per_s"):
                promised = speed * getattr(whole.device, rate)
                assert promised <= getattr(part.device, rate) * (1 + 1e-12)
            rank += 1
        assert whole.device.memory_bytes <= part.device.memory_bytes
        for link, of_part in (
            (whole.intra_node, part.intra_node),
            (whole.inter_node, part.inter_node),
        ):
            assert link.bandwidth_bytes_per_s <= of_part.bandwidth_bytes_per_s
            assert link.latency_s >= of_part.latency_s
    assert max(whole.speeds, default=1.0) == 1.0


def test_a_joined_cluster_has_the_worst_of_each_figure():
    fast = load_cluster("h100x8")
    lazy = replace(fast.device, launch_s=0.5, layer_s=0.25, half_rate_tokens=9000.0)
    slow = replace(
        fast,
        device=replace(lazy, attention_flops_per_s=fast.device.attention_flops_per_s / 4),
        inter_node=replace(fast.inter_node, latency_s=1.0),
        nics_per_node=2,
    )

    whole = joined("test", [fast, slow])

    device = whole.device
    assert (device.launch_s, device.layer_s, device.half_rate_tokens) == (0.5, 0.25, 9000.0)
    assert whole.inter_node == replace(fast.inter_node, latency_s=1.0)
    assert whole.num_nics == 2
    assert whole.speeds == (1.0,) * 8 + (0.25,) * 8


def test_nodes_of_one_kind_join_to_the_cluster_of_that_size():
    assert replace(load_cluster("h100x8+h100x16"), name="h100x24") == load_cluster("h100x24")


def test_gpus_that_share_nics_share_their_bandwidth():
    cluster = replace(load_cluster("h100x32"), nics_per_node=2)
    inside, network = cluster.intra_node, cluster.inter_node.bandwidth_bytes_per_s

    assert cluster.link_within((0, 7)) == cluster.link_within((3,)) == inside
    assert cluster.link_within((0, 8)) == cluster.link_within((0, 1, 8)) == cluster.inter_node
    assert cluster.link_within((0, 1, 2, 3, 8)).bandwidth_bytes_per_s == network / 2
    assert cluster.link_within(tuple(range(32))).bandwidth_bytes_per_s == network / 4
    own = replace(cluster, nics_per_node=0)
    assert own.link_within(tuple(range(32))) == cluster.inter_node


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


def test_a_machine_has_nodes_of_its_own_whatever_the_files_are():
    as_they_are = cluster_on_machines("h100", (8, 8))
    assert as_they_are == load_cluster("h100x16")
    half = cluster_on_machines("h100", (4, 4, 4))
    assert (half.num_nodes, half.gpus_per_node, half.name) == (3, 4, "h100x12")
    assert [half.node_of(rank) for rank in (3, 4, 11)] == [0, 1, 2]
    large = cluster_on_machines("h100", (16, 16))
    assert (large.num_nodes, large.gpus_per_node) == (4, 8)


def test_unequal_machines_are_several_nodes_each_which_promise_no_more_than_there_is(
    tmp_path: Path,
):
    speeds = (1.0, 0.5, 1.0, 0.25)
    mine = replace(load_cluster("h100x4"), nics_per_node=2, speeds=speeds)
    path = tmp_path / "mine.toml"
    path.write_text(cluster_file_text(mine, comment="x"))

    cluster = cluster_on_machines(str(path), (2, 4))

    assert (cluster.num_nodes, cluster.gpus_per_node, cluster.nics_per_node) == (3, 2, 1)
    assert cluster.speeds == (*speeds[:2], *speeds)
    assert cluster.link_within((1, 2)) == cluster.inter_node, "on two machines"
    assert cluster_on_machines(str(path), (1, 2)).gpus_per_node == 1
