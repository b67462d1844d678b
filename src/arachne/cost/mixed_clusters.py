"""Clusters whose nodes are of several kinds, as one cluster with GPUs of uneven speed."""

from collections.abc import Sequence
from dataclasses import replace

from arachne.core.cluster import Cluster, Device, Link
from arachne.core.errors import ConfigError


def joined(name: str, parts: Sequence[Cluster]) -> Cluster:
    """One cluster with the nodes of all parts, which never promises more than they have.

    Its rates are those of the part with the fastest matrix products; the speed of the other GPUs is
    the least of their three rates (matrix products, attention, memory) beside those. Memory, links
    and NICs of a node are the least of all parts, fixed costs the greatest.

    Raises:
        ConfigError: The parts' nodes have different numbers of GPUs.
    """
    sizes = {part.gpus_per_node for part in parts}
    if len(sizes) > 1:
        raise ConfigError(
            f"cluster {name!r} joins nodes of {' and '.join(map(str, sorted(sizes)))} GPUs; "
            "all nodes of a cluster have equally many"
        )
    devices = [part.device for part in parts]
    fastest = max(devices, key=lambda device: device.matmul_flops_per_s)
    speeds = tuple(
        _speed_beside(part.device, fastest) * part.speed_of(rank)
        for part in parts
        for rank in range(part.num_gpus)
    )
    return Cluster(
        name=name,
        num_nodes=sum(part.num_nodes for part in parts),
        gpus_per_node=parts[0].gpus_per_node,
        device=replace(
            fastest,
            name=" + ".join(dict.fromkeys(device.name for device in devices)),
            half_rate_tokens=max(device.half_rate_tokens for device in devices),
            launch_s=max(device.launch_s for device in devices),
            layer_s=max(device.layer_s for device in devices),
            memory_bytes=min(device.memory_bytes for device in devices),
        ),
        intra_node=_slowest([part.intra_node for part in parts]),
        inter_node=_slowest([part.inter_node for part in parts]),
        nics_per_node=min(part.num_nics for part in parts),
        speeds=speeds if min(speeds) < 1.0 else (),
    )


def _speed_beside(device: Device, fastest: Device) -> float:
    return min(
        1.0,
        device.matmul_flops_per_s / fastest.matmul_flops_per_s,
        device.attention_flops_per_s / fastest.attention_flops_per_s,
        device.memory_bytes_per_s / fastest.memory_bytes_per_s,
    )


def _slowest(links: Sequence[Link]) -> Link:
    return Link(
        latency_s=max(link.latency_s for link in links),
        bandwidth_bytes_per_s=min(link.bandwidth_bytes_per_s for link in links),
    )
