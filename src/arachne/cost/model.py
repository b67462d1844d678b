"""The cost model: seconds and bytes of a cascade on a group of GPUs, and of a step's end.

    compute = launch + layers·layer + gradient adding
              + 3·(sharded/p + replicated + 2·h·weights) / R
              + 3·(self-attention·⌈H/p⌉/H + cross-attention/p) / R_attention
    launch  = compute + Ulysses collectives

R is the device's matrix rate and h its `half_rate_tokens`: a product of n tokens runs at
R·n / (n + h), so that each weight costs 2·(n + h) / R, whatever n is. H heads on p ranks keep the
rank with most heads busy for ⌈H/p⌉/H of the attention. Nothing is overlapped.
"""

from dataclasses import dataclass
from math import ceil

from arachne.core.cascade import Cascade
from arachne.core.cluster import Cluster, Link
from arachne.core.families import family_named
from arachne.core.launch_mode import WHOLE, LaunchMode
from arachne.core.model_shape import ModelShape
from arachne.cost.collectives import all_gather_s, reduce_scatter_s
from arachne.cost.flops import TRAINING_PASSES, forward_flops_split, num_matmul_weights
from arachne.cost.memory import launch_bytes
from arachne.cost.traffic import launch_traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWork:
    """What one rank of a launch computes, in the terms that the cost model is linear in.

    Attributes:
        matmul_flops: Training FLOPs of matrix products with weights.
        attention_flops: Training FLOPs of the rank that holds most heads.
        flops_per_half_rate_token: Times `half_rate_tokens`, what small products lose in FLOPs.
    """

    matmul_flops: float
    attention_flops: float
    flops_per_half_rate_token: float


def rank_work(model: ModelShape, num_tokens: int, num_clips: int, degree: int) -> RankWork:
    """One rank's part of a launch of `num_clips` clips on `degree` ranks."""
    flops = forward_flops_split(model, num_tokens, num_clips)
    head_share = ceil(model.num_heads / degree) / model.num_heads
    return RankWork(
        matmul_flops=TRAINING_PASSES * (flops.sharded_matmul / degree + flops.replicated_matmul),
        attention_flops=TRAINING_PASSES
        * (flops.self_attention * head_share + flops.cross_attention / degree),
        flops_per_half_rate_token=TRAINING_PASSES * 2.0 * num_matmul_weights(model),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Costs of one model on one cluster; groups are given as ranks of that cluster.

    Attributes:
        model: The transformer.
        cluster: Where it trains.
        element_bytes: Bytes of one weight or activation: 2 for bfloat16, 4 for float32.
    """

    model: ModelShape
    cluster: Cluster
    element_bytes: int

    @property
    def memory_bytes(self) -> float:
        """Memory of one GPU that training may use."""
        return self.cluster.device.memory_bytes

    def launch_s(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        """Seconds that a launch of `cascade` keeps `gpus` busy, forward and backward."""
        return self.compute_s(cascade, gpus) + self.communicate_s(cascade, gpus)

    def compute_s(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        """The part of `launch_s` in which the GPUs compute."""
        device = self.cluster.device
        work = rank_work(self.model, cascade.num_tokens, cascade.num_clips, len(gpus))
        lost_flops = device.half_rate_tokens * work.flops_per_half_rate_token
        return (
            self.launch_overhead_s
            + (work.matmul_flops + lost_flops) / device.matmul_flops_per_s
            + work.attention_flops / device.attention_flops_per_s
        )

    def communicate_s(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        """The part of `launch_s` in which the GPUs exchange activations, on their slowest link."""
        traffic = launch_traffic(
            self.model, cascade.num_tokens, cascade.num_clips, len(gpus), self.element_bytes
        )
        return traffic.seconds(self.cluster.link_within(gpus))

    @property
    def launch_overhead_s(self) -> float:
        """Seconds that a launch costs whatever is in it, small products not counted."""
        device = self.cluster.device
        return device.launch_s + self.model.num_layers * device.layer_s + self.gradient_add_s

    @property
    def gradient_add_s(self) -> float:
        """Seconds in which a launch's gradients are added into the buffer.

        Reads gradient and buffer, writes the buffer: P·(e + 2·max(4, e)) bytes of memory traffic.
        """
        moved_bytes = self.element_bytes + 2.0 * self._state_bytes
        return self._num_parameters * moved_bytes / self.cluster.device.memory_bytes_per_s

    def launch_bytes(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        """Memory that each of `gpus` needs for this launch, weights and optimizer included."""
        return launch_bytes(
            self.model,
            cascade.num_tokens,
            cascade.num_clips,
            len(gpus),
            world_size=self.cluster.num_gpus,
            element_bytes=self.element_bytes,
        )

    def fits(self, cascade: Cascade, gpus: tuple[int, ...]) -> bool:
        """Whether the launch keeps the memory cap, and each GPU gets at least one token."""
        return (
            len(gpus) <= cascade.num_tokens
            and self.launch_bytes(cascade, gpus) <= self.memory_bytes
        )

    def mode(self, cascade: Cascade, gpus: tuple[int, ...]) -> LaunchMode:
        """The mode whose seconds `launch_s` gives."""
        return WHOLE

    def handoff_s(
        self, cascade: Cascade, from_gpus: tuple[int, ...], to_gpus: tuple[int, ...]
    ) -> float:
        """Seconds that bring what encoder cascade `cascade` made to the GPUs that train on it."""
        return 0.0

    def gpu_speed(self, gpu: int) -> float:
        """Computing speed of a GPU beside the fastest one's, which is 1."""
        return self.cluster.speed_of(gpu)

    def gradient_reduce_s(self) -> float:
        """Seconds of the step's one reduce-scatter of gradients over the whole world."""
        message_bytes = self._num_parameters * self._state_bytes
        return reduce_scatter_s(message_bytes, self.cluster.num_gpus, self._world_link)

    def optimizer_s(self) -> float:
        """Seconds of the sharded AdamW step, bound by memory traffic.

        Reads gradient, master, two moments; writes master, two moments and the weight.
        """
        moved_bytes = 7.0 * self._state_bytes + self.element_bytes
        num_owned = self._num_parameters / self.cluster.num_gpus
        return num_owned * moved_bytes / self.cluster.device.memory_bytes_per_s

    def parameter_gather_s(self) -> float:
        """Seconds of the step's one all-gather of updated weights."""
        message_bytes = float(self._num_parameters * self.element_bytes)
        return all_gather_s(message_bytes, self.cluster.num_gpus, self._world_link)

    def step_overhead_s(self) -> float:
        """Seconds from a step's last launch to the next step: reduce, optimizer, gather."""
        return self.gradient_reduce_s() + self.optimizer_s() + self.parameter_gather_s()

    @property
    def _world_link(self) -> Link:
        return self.cluster.link_within(tuple(range(self.cluster.num_gpus)))

    @property
    def _num_parameters(self) -> int:
        return family_named(self.model.family).num_parameters(self.model)

    @property
    def _state_bytes(self) -> int:
        return max(4, self.element_bytes)
