"""Clusters by name: `h100x16` is 16 GPUs as `clusters/h100.toml` describes them.

A cluster file holds one node; a calibrated one of your own is named by its path:
`runs/mine.tomlx8`. Nodes of several kinds are joined by +: `h100x8+a100-80gx8`.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib.resources import files
from math import gcd
from pathlib import Path

from arachne.core.cluster import Cluster, Device, Link
from arachne.core.errors import ConfigError
from arachne.core.strict_toml import convert, read_table
from arachne.cost.mixed_clusters import joined

_PART = re.compile(r"(?P<file>.+?)x(?P<num_gpus>[0-9]+)(?:\+|$)")
"""One kind of node in a cluster's name; a + inside a file's name is none between two kinds."""

MOST_GPUS = 32_768
"""GPUs of the largest cluster: a step of few clips on so many is planned in 12 s on one core."""

_RATES = (1e3, 1e19)
"""Of FLOPs and bytes a second; calibration writes 1e18 for what is too fast to measure."""

_RANGES: dict[str, tuple[float, float]] = {
    "matmul_flops_per_s": _RATES,
    "attention_flops_per_s": _RATES,
    "half_rate_tokens": (0.0, 1e9),
    "launch_s": (0.0, 1e6),
    "layer_s": (0.0, 1e6),
    "memory_bytes": (1.0, 1e18),
    "memory_bytes_per_s": _RATES,
    "latency_s": (0.0, 1e6),
    "bandwidth_bytes_per_s": _RATES,
}
"""Least and most of each figure: far beyond any hardware, but all durations stay finite."""

_LEAST_SPEED = 1e-6

_MOST_SHOWN = 80
"""Characters of a cluster's name in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFile:
    """A cluster file: one node, and the network between such nodes.

    Attributes:
        gpus_per_node: GPUs of a whole node.
        device: The GPU.
        intra_node: Connection inside a node.
        inter_node: Connection between nodes.
        nics_per_node: NICs that the GPUs of a whole node share; 0 is one for each GPU.
        speeds: Of each GPU of a node, its computing speed beside the fastest one's, which is 1;
            empty if all are alike.
    """

    gpus_per_node: int
    device: Device
    intra_node: Link
    inter_node: Link
    nics_per_node: int = 0
    speeds: tuple[float, ...] = ()


def cluster_names() -> tuple[str, ...]:
    """Names of the cluster files that come with Arachne, sorted."""
    folder = files("arachne.cost") / "clusters"
    names = (entry.name for entry in folder.iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


def says_its_gpus(name: str) -> bool:
    """Whether a name is that of a cluster, `h100x16`, and not of a file, `h100`."""
    _, x, gpus = name.rpartition("x")
    return bool(x) and gpus.isdecimal()


def load_cluster(name: str) -> Cluster:
    """The cluster called `NAMExGPUS`, for example `h100x16`: two nodes of eight.

    Up to one node's GPUs make one smaller node; more must fill whole nodes. `A+B` has the nodes of
    A, then those of B (`cost/mixed_clusters.py`).

    Raises:
        ConfigError: The form, the name or the number of GPUs is wrong or above `MOST_GPUS`, a file
            cannot be read, or nodes of different size are joined.
    """
    text = name.strip()
    matches = list(_PART.finditer(text))
    is_whole = "".join(match[0] for match in matches) == text and not text.endswith("+")
    if not matches or not is_whole or any(not match["num_gpus"].strip("0") for match in matches):
        raise ConfigError(
            f"cluster {name!r} is not NAMExGPUS; write for example h100x16; "
            f"known names: {', '.join(cluster_names())}"
        )
    # The digits are counted first, as Python refuses to read numbers of thousands of them.
    is_large = any(len(match["num_gpus"].lstrip("0")) > 9 for match in matches)
    if is_large or sum(int(match["num_gpus"]) for match in matches) > MOST_GPUS:
        shown = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
        raise ConfigError(
            f"cluster {shown!r} has more than {MOST_GPUS:,} GPUs, the most that are planned for; "
            "name fewer"
        )
    parts = [_cluster_of_file(match["file"], int(match["num_gpus"])) for match in matches]
    return parts[0] if len(parts) == 1 else joined(text, parts)


def _cluster_of_file(file_name: str, num_gpus: int) -> Cluster:
    name = f"{file_name}x{num_gpus}"
    file = _cluster_file(file_name)
    gpus_per_node = min(num_gpus, file.gpus_per_node)
    if num_gpus % gpus_per_node:
        whole = num_gpus - num_gpus % gpus_per_node
        raise ConfigError(
            f"cluster {name!r}: {num_gpus} GPUs do not fill nodes of {gpus_per_node}; "
            f"use {whole} or {whole + gpus_per_node}"
        )
    num_nodes = num_gpus // gpus_per_node
    return Cluster(
        name=name,
        num_nodes=num_nodes,
        gpus_per_node=gpus_per_node,
        device=file.device,
        intra_node=file.intra_node,
        inter_node=file.inter_node,
        nics_per_node=file.nics_per_node,
        speeds=file.speeds[:gpus_per_node] * num_nodes,
    )


def cluster_on_machines(file_name: str, sizes: Sequence[int]) -> Cluster:
    """Machines with so many GPUs each, in the order of their ranks, with the figures of a file.

    A cluster has nodes of one size. Where machines differ, or are larger than the file's, they are
    taken for several nodes each: all of as many GPUs as divide every machine. What two such nodes
    of one machine send each other is then modelled slower than it is, and never faster. They share
    out the NICs of the largest machine.

    Raises:
        ConfigError: There is no such file.
    """
    file = _cluster_file(file_name)
    size = gcd(*sizes)
    if size > file.gpus_per_node:
        size = gcd(size, file.gpus_per_node)
    largest = min(max(sizes), file.gpus_per_node)
    places = [place for number in sizes for place in range(number)]
    return Cluster(
        name=f"{file_name}x{sum(sizes)}",
        num_nodes=sum(sizes) // size,
        gpus_per_node=size,
        device=file.device,
        intra_node=file.intra_node,
        inter_node=file.inter_node,
        nics_per_node=file.nics_per_node and max(1, file.nics_per_node * size // largest),
        speeds=tuple(file.speeds[place % file.gpus_per_node] for place in places if file.speeds),
    )


def machine_cluster(
    num_ranks: int,
    *,
    like: str = "cpu",
    ranks_per_node: int | None = None,
    device_name: str | None = None,
    memory_bytes: float | None = None,
) -> Cluster:
    """This machine, before it was measured: figures of `like`, and what the caller found out.

    All its ranks count as equally fast.

    Args:
        num_ranks: Ranks of the run.
        like: Cluster file whose rates are the first guess.
        ranks_per_node: Ranks on one machine; None puts all on one.
        device_name: What the device calls itself.
        memory_bytes: Memory that one rank may use.

    Raises:
        ConfigError: No cluster file is called `like`, or the ranks do not fill whole machines.
    """
    file = _cluster_file(like)
    per_node = ranks_per_node or num_ranks
    if num_ranks % per_node:
        raise ConfigError(
            f"{num_ranks} ranks do not fill machines of {per_node}; "
            "start the same number of ranks on every machine"
        )
    device = replace(
        file.device,
        name=device_name or file.device.name,
        memory_bytes=memory_bytes or file.device.memory_bytes,
    )
    return Cluster(
        name="auto",
        num_nodes=num_ranks // per_node,
        gpus_per_node=per_node,
        device=device,
        intra_node=file.intra_node,
        inter_node=file.inter_node,
        nics_per_node=file.nics_per_node,
    )


def cluster_file_text(cluster: Cluster, *, comment: str) -> str:
    """A cluster as the text of a cluster file; `comment` says where the figures come from.

    Raises:
        ConfigError: The nodes differ in speed; a cluster file holds one node.
    """
    device = cluster.device
    speeds = cluster.speeds[: cluster.gpus_per_node]
    if cluster.speeds != speeds * cluster.num_nodes:
        raise ConfigError(
            f"cluster {cluster.name!r} has nodes of different speeds, but a cluster file holds one "
            "node; write one file for each kind, and join them by name: AxGPUS+BxGPUS"
        )
    lines = [f"# {line}" for line in comment.splitlines()]
    lines.append(f"gpus_per_node = {cluster.gpus_per_node}")
    if cluster.nics_per_node:
        lines.append(f"nics_per_node = {cluster.nics_per_node}")
    if speeds:
        lines.append(f"speeds = [{', '.join(repr(float(speed)) for speed in speeds)}]")
    lines += ["", "[device]"]
    lines.append("name = " + '"' + device.name.replace("\\", "\\\\").replace('"', '\\"') + '"')
    numbers = (
        "matmul_flops_per_s",
        "attention_flops_per_s",
        "half_rate_tokens",
        "launch_s",
        "layer_s",
        "memory_bytes",
        "memory_bytes_per_s",
    )
    lines += [f"{number} = {float(getattr(device, number))!r}" for number in numbers]
    for section, link in (("intra_node", cluster.intra_node), ("inter_node", cluster.inter_node)):
        lines += ["", f"[{section}]", f"latency_s = {float(link.latency_s)!r}"]
        lines.append(f"bandwidth_bytes_per_s = {float(link.bandwidth_bytes_per_s)!r}")
    return "\n".join(lines) + "\n"


def _cluster_file(name: str) -> ClusterFile:
    if name.endswith(".toml"):
        absent = f"there is no cluster file {name!r}; `arachne profile` writes one"
        table = read_table(Path(name), absent=absent)
    else:
        known = cluster_names()
        if name not in known:
            close = get_close_matches(name, known, n=1)
            nearest = f"; did you mean {close[0]!r}?" if close else ""
            raise ConfigError(
                f"no cluster file is called {name!r}{nearest}; known names: {', '.join(known)}; "
                "write NAMExGPUS, for example h100x16"
            )
        resource = files("arachne.cost") / "clusters" / f"{name}.toml"
        table = read_table(resource, absent=f"cluster file {name!r} is gone; install Arachne again")
    file = convert(table, ClusterFile, source=f"cluster file {name!r}")
    problem = next(_wrong_values(file), None)
    if problem is not None:
        raise ConfigError(f"cluster file {name!r}: {problem}")
    return file


def _wrong_values(file: ClusterFile) -> Iterator[str]:
    if not 1 <= file.gpus_per_node <= MOST_GPUS:
        yield (
            f"gpus_per_node is {file.gpus_per_node}; a node has at least one GPU, and at most "
            f"{MOST_GPUS:,}"
        )
    if file.nics_per_node < 0:
        yield f"nics_per_node is {file.nics_per_node}; write a count, or 0 for one for each GPU"
    if file.speeds and len(file.speeds) != file.gpus_per_node:
        yield (
            f"speeds has {len(file.speeds)} values for {file.gpus_per_node} GPUs; "
            "write one for each GPU of a node, or none"
        )
    for speed in file.speeds:
        if not _LEAST_SPEED <= speed <= 1.0:
            yield (
                f"speeds has {speed}; the fastest GPU has 1, the others less, but at least "
                f"{_LEAST_SPEED:g}"
            )
    if file.speeds and max(file.speeds) < 1.0:
        yield (
            f"speeds has none above {max(file.speeds)}; the fastest GPU has 1, the others their "
            "share of its speed"
        )
    for section, value in (
        ("device", file.device),
        ("intra_node", file.intra_node),
        ("inter_node", file.inter_node),
    ):
        for name, (least, most) in _RANGES.items():
            number = getattr(value, name, least)  # a link has no rate of matrix products
            if not least <= number <= most:
                yield f"{section}.{name} is {number}; it has to be {least:g} to {most:g}"
