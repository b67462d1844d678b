"""The hardware that a plan runs on."""

from collections import Counter
from dataclasses import dataclass, replace

from arachne.core.errors import ConfigError
from arachne.core.hashed_once import HashedOnce, hashed_once


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One kind of connection between two GPUs: latency, and bandwidth per GPU and direction."""

    latency_s: float
    bandwidth_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU (or one CPU rank).

    Attributes:
        name: As the vendor calls it.
        matmul_flops_per_s: Reachable rate of large matrix products in the training dtype.
        attention_flops_per_s: Reachable rate of the attention kernel, forward and backward.
        half_rate_tokens: Tokens on one device at which matrix products reach half their rate;
            small pieces of work run slower than large ones.
        launch_s: Fixed seconds that one launch costs (Python, kernel launches, optimizer buffer).
        layer_s: Fixed seconds that each transformer block costs a launch, forward and backward.
        memory_bytes: Memory that training may use.
        memory_bytes_per_s: Bandwidth of that memory.
    """

    name: str
    matmul_flops_per_s: float
    attention_flops_per_s: float
    half_rate_tokens: float
    launch_s: float
    layer_s: float
    memory_bytes: float
    memory_bytes_per_s: float


@hashed_once
@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster(HashedOnce):
    """Nodes of equal size with alike GPUs.

    Attributes:
        name: Name of the cluster file.
        num_nodes: Nodes.
        gpus_per_node: GPUs of each node.
        device: The GPU.
        intra_node: Connection of two GPUs in one node; its bandwidth is what each GPU gets while
            all GPUs of the node send.
        inter_node: Connection of two GPUs in different nodes; its bandwidth is that of one NIC.
        nics_per_node: NICs that the GPUs of a node share; 0 is one for each GPU.
        speeds: Of each rank, its computing speed beside the fastest one's, which is 1; empty if
            all are alike.
    """

    name: str
    num_nodes: int
    gpus_per_node: int
    device: Device
    intra_node: Link
    inter_node: Link
    nics_per_node: int = 0
    speeds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.num_nodes < 1 or self.gpus_per_node < 1:
            raise ConfigError(
                f"cluster {self.name!r} has {self.num_nodes} nodes of {self.gpus_per_node} GPUs; "
                "it needs at least one of each"
            )
        if self.nics_per_node < 0:
            raise ConfigError(
                f"cluster {self.name!r} has {self.nics_per_node} NICs per node; write how many the "
                "GPUs of a node share, or 0 for one each"
            )
        if self.speeds and len(self.speeds) != self.num_gpus:
            raise ConfigError(
                f"cluster {self.name!r} gives {len(self.speeds)} speeds for {self.num_gpus} GPUs; "
                "it needs one for each, or none"
            )
        if any(not 0.0 < speed <= 1.0 for speed in self.speeds):
            raise ConfigError(
                f"cluster {self.name!r} has a speed outside (0, 1]; the fastest GPU has speed 1"
            )

    @property
    def num_gpus(self) -> int:
        """GPUs of the whole cluster."""
        return self.num_nodes * self.gpus_per_node

    def node_of(self, rank: int) -> int:
        """The node that holds a rank; ranks are numbered node by node."""
        return rank // self.gpus_per_node

    def speed_of(self, rank: int) -> float:
        """Computing speed of a rank beside the fastest one's."""
        return self.speeds[rank] if self.speeds else 1.0

    @property
    def num_nics(self) -> int:
        """NICs of a node."""
        return self.nics_per_node or self.gpus_per_node

    @property
    def shares_nics(self) -> bool:
        """Whether a node has fewer NICs than GPUs, so that transfers may slow each other down."""
        return self.num_nics < self.gpus_per_node

    def nic_share(self, num_members: int) -> float:
        """The part of a NIC's bandwidth that each of a node's `num_members` senders gets.

        min(1, NICs / senders): a GPU sends through one NIC, so more NICs than senders help nobody.
        """
        return min(1.0, self.num_nics / num_members)

    def link_within(self, ranks: tuple[int, ...]) -> Link:
        """The connection that each rank of a group has to the others while all of them send.

        Inside one node that is `intra_node`. Across nodes the g ranks of the group's fullest node
        share its n NICs (a collective is as slow as its slowest member):

            bandwidth = inter_node.bandwidth · min(1, n / g)

        Rings that run side by side send at once, so ask with all ranks of their launch. Ignores
        other launches on the same NICs; the simulator adds those.
        """
        nodes = {self.node_of(rank) for rank in ranks}
        if len(nodes) == 1:
            return self.intra_node
        if not self.shares_nics:
            return self.inter_node
        fullest = max(Counter(self.node_of(rank) for rank in ranks).values())
        bandwidth = self.inter_node.bandwidth_bytes_per_s * self.nic_share(fullest)
        return replace(self.inter_node, bandwidth_bytes_per_s=bandwidth)
