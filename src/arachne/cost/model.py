"""The cost model: seconds and bytes of a cascade on a group of GPUs, and of a step's end.

    compute = ( launch + layers·layer + gradient adding
                + ((3 + ρ)·(sharded/p + replicated) + lost in small products) / R
                + (3 + ρ)·(self-attention·⌈H/u⌉/(H·r) + cross-attention/p) / R_attention ) / speed
    launch  = compute + exchanges of the launch

on p = u·r ranks, u in a Ulysses group and r groups on a ring, of which the slowest has this speed.
The share ρ of the blocks is computed twice. R is the device's matrix rate and h its
`half_rate_tokens`: a product of n tokens runs at R·n / (n + h), so that each weight costs
2·(n + h) / R, whatever n is. Nothing is overlapped. Each launch runs in the fastest mode that fits.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade, Encoder
from arachne.core.cluster import Cluster, Link
from arachne.core.hashed_once import HashedOnce, hashed_once
from arachne.core.launch_mode import WHOLE, LaunchMode
from arachne.core.model_shape import ModelShape
from arachne.cost.activations import LaunchActivations, launch_activations
from arachne.cost.collectives import all_gather_s, reduce_scatter_s
from arachne.cost.encoder_costs import Encoders, handoff_bytes, handoff_s, published_encoders
from arachne.cost.launch_modes import ONE_MODE, CostOptions, GpuGroup, gpu_group
from arachne.cost.memory import MemoryUse, fitting_use, resident_use
from arachne.cost.model_counts import model_counts
from arachne.cost.rank_work import rank_work
from arachne.cost.traffic import launch_traffic
from arachne.cost.training_state import FULL_TRAINING, HOST_BYTES_PER_S, TrainingState

_MERGE_BYTES = 28.0
"""Memory traffic of a ring for each element of a part's result, forward or backward: a float32 sum
is scaled (read, written), the part's is read, scaled and added to it. Counted in
`runtime/ring_attention.py`; the backward's three sums are about as much."""

_FORWARD_SHARE = 1.0 / 3.0
"""Of a block's fixed cost; *assumption*: kernels of the backward are twice as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCost:
    """What a launch costs in the mode that it runs in.

    Attributes:
        mode: How it runs.
        compute_s: Seconds computing, on the slowest GPU.
        communicate_s: Seconds exchanging.
        memory: Of each of its GPUs.
        fits: Whether the mode is allowed, and memory suffices.
    """

    mode: LaunchMode
    compute_s: float
    communicate_s: float
    memory: MemoryUse
    fits: bool


@hashed_once
@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel(HashedOnce):
    """Costs of one model on one cluster; groups are given as ranks of that cluster.

    Attributes:
        model: The transformer.
        cluster: Where it trains.
        element_bytes: Bytes of one weight or activation: 2 for bfloat16, 4 for float32.
        state: How weights, gradients and optimizer state are stored.
        options: Which modes launches may run in.
        encoders: What makes latents and text states; None takes those that the model's family was
            published with, in the model's type.
    """

    model: ModelShape
    cluster: Cluster
    element_bytes: int
    state: TrainingState = FULL_TRAINING
    options: CostOptions = ONE_MODE
    encoders: Encoders | None = None

    @property
    def memory_bytes(self) -> float:
        """Memory of one GPU that training may use."""
        return self.cluster.device.memory_bytes

    def launch_cost(self, cascade: Cascade, gpus: tuple[int, ...]) -> LaunchCost:
        """The launch in its fastest mode that fits; if none does, in the one that needs least.

        Ties go to the smaller ring, then to less recomputing. Looked up once for all groups that
        cost the same.
        """
        group = gpu_group(self.cluster, gpus)
        if cascade.module == "dit":
            return _training_cost(self, cascade.num_tokens, cascade.num_clips, group)
        return _encoding_cost(self, cascade.module, cascade.bucket, cascade.num_clips, group)

    def launch_s(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        """Seconds that a launch of `cascade` keeps `gpus` busy, forward and backward."""
        cost = self.launch_cost(cascade, gpus)
        return cost.compute_s + cost.communicate_s

    def compute_s(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        """The part of `launch_s` in which the slowest GPU computes."""
        return self.launch_cost(cascade, gpus).compute_s

    def communicate_s(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        """The part of `launch_s` in which the GPUs exchange activations and parameters."""
        return self.launch_cost(cascade, gpus).communicate_s

    def seconds_in(
        self, mode: LaunchMode, cascade: Cascade, gpus: tuple[int, ...]
    ) -> tuple[float, float]:
        """Seconds computing and exchanging of a training launch in any mode, memory aside."""
        group = gpu_group(self.cluster, gpus)
        level = mode.recompute_layers
        fixed_s = _fixed_seconds(self, cascade.num_tokens, cascade.num_clips, group, level)
        return _mode_seconds(self, cascade.num_tokens, cascade.num_clips, group, mode, fixed_s)

    def launch_bytes(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        """Memory that each of `gpus` needs in the launch's mode, weights and optimizer included."""
        return self.launch_cost(cascade, gpus).memory.total

    def fits(self, cascade: Cascade, gpus: tuple[int, ...]) -> bool:
        """Whether some mode keeps the memory cap.

        Each GPU gets at least one token, and launches take whole groups that share out parameters.
        """
        return self.launch_cost(cascade, gpus).fits

    def mode(self, cascade: Cascade, gpus: tuple[int, ...]) -> LaunchMode:
        """The mode whose seconds `launch_s` gives."""
        return self.launch_cost(cascade, gpus).mode

    def memory(self, cascade: Cascade, gpus: tuple[int, ...]) -> MemoryUse:
        """Memory of each of `gpus`, item by item."""
        return self.launch_cost(cascade, gpus).memory

    def memory_in(self, mode: LaunchMode, cascade: Cascade, degree: int) -> MemoryUse:
        """Memory of each GPU of a training launch in any mode."""
        levels = (mode.recompute_layers,)
        return _fitting_memory(self, cascade.num_tokens, cascade.num_clips, degree, levels)[1]

    def added_bytes(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        """Memory that as many clips again would add to a launch in the same mode, on each GPU."""
        degree, levels = len(gpus), (self.mode(cascade, gpus).recompute_layers,)
        once, twice = (
            _fitting_memory(self, cascade.num_tokens, num_clips, degree, levels)[1].total
            for num_clips in (cascade.num_clips, 2 * cascade.num_clips)
        )
        return twice - once

    def handoff_s(
        self, cascade: Cascade, from_gpus: tuple[int, ...], to_gpus: tuple[int, ...]
    ) -> float:
        """Seconds that bring what encoder cascade `cascade` made to the GPUs that train on it.

        Nothing where those GPUs made it themselves.
        """
        if set(to_gpus) <= set(from_gpus):
            return 0.0
        link = self.cluster.link_within(tuple(sorted({*from_gpus, *to_gpus})))
        return handoff_s(handoff_bytes(self.model, cascade), len(from_gpus), link)

    def gpu_speed(self, gpu: int) -> float:
        """Computing speed of a GPU beside the fastest one's, which is 1."""
        return self.cluster.speed_of(gpu)

    @property
    def launch_overhead_s(self) -> float:
        """Seconds that a launch costs whatever is in it, small products not counted."""
        device = self.cluster.device
        swap_s = 2.0 * self._swapped_bytes / HOST_BYTES_PER_S
        fixed_s = device.launch_s + self.model.num_blocks * device.layer_s
        return fixed_s + self.gradient_add_s + swap_s

    @property
    def gradient_add_s(self) -> float:
        """Seconds in which a launch's gradients are added into the buffer.

        Reads gradient and buffer, writes the buffer: A·(e + 2·g) / q bytes of memory traffic for A
        trained parameters shared out over q ranks and sums of g bytes. If the buffer lies on the
        host, what is there comes and the sum goes back, 2·A·s / q bytes with s = max(4, e); ignores
        that for a step's first launch nothing has to come.
        """
        num_held = self._num_trainable / self.state.parameter_shards
        if self.state.gradients == "host":
            return num_held * 2.0 * self._state_bytes / HOST_BYTES_PER_S
        moved_bytes = self.element_bytes + 2.0 * self.state.gradient_bytes(self.element_bytes)
        return num_held * moved_bytes / self.cluster.device.memory_bytes_per_s

    @property
    def parameter_exchange_s(self) -> float:
        """Seconds in which a launch gathers shared-out parameters, twice, and scatters gradients.

        Block by block, in groups of q neighbouring ranks, with b bytes a weight and g a gradient:

            t = blocks · (2·all_gather(b·weights of a block, q) + reduce_scatter(g·trained ones, q))

        Source: ZeRO stage 3 (Rajbhandari et al., 2020), as FSDP runs it. Ignores what is outside
        the blocks, and that the next block's gather may hide behind this one's computing.
        """
        num_shards = self.state.parameter_shards
        if num_shards == 1:
            return 0.0
        link = self.cluster.link_within(tuple(range(min(num_shards, self.cluster.num_gpus))))
        num_blocks = self.model.num_blocks
        # Gradients that are kept on the host are summed on the GPU, in the model's type.
        summed_bytes = self.state.gradient_bytes(self.element_bytes) or self.element_bytes
        gradient_bytes = self._num_trainable * summed_bytes / num_blocks
        gathered_s = all_gather_s(self._block_bytes, num_shards, link)
        return num_blocks * (2.0 * gathered_s + reduce_scatter_s(gradient_bytes, num_shards, link))

    def gradient_reduce_s(self) -> float:
        """Seconds of the step's one sum of gradients over all ranks that hold the same ones.

        Whatever type they are kept in, they travel in float32 or the model's type if that is wider.
        """
        num_shards = self.state.parameter_shards
        message_bytes = self._num_trainable / num_shards * self._state_bytes
        is_on_host = self.state.gradients == "host"
        from_host_s = message_bytes / HOST_BYTES_PER_S if is_on_host else 0.0
        num_holders = self.cluster.num_gpus // num_shards
        return from_host_s + reduce_scatter_s(message_bytes, num_holders, self._world_link)

    def optimizer_s(self) -> float:
        """Seconds of the sharded AdamW step, bound by memory traffic.

        Reads gradient, master, two moments; writes master, two moments and the weight.
        """
        moved_bytes = 7.0 * self._state_bytes + self.element_bytes
        num_owned = self._num_trainable / self.cluster.num_gpus
        return num_owned * moved_bytes / self.cluster.device.memory_bytes_per_s

    def parameter_gather_s(self) -> float:
        """Seconds of the step's one all-gather of updated weights."""
        num_shards = self.state.parameter_shards
        message_bytes = self._num_trainable * self.element_bytes / num_shards
        num_holders = self.cluster.num_gpus // num_shards
        return all_gather_s(message_bytes, num_holders, self._world_link)

    def step_overhead_s(self) -> float:
        """Seconds from a step's last launch to the next step: reduce, optimizer, gather."""
        return self.gradient_reduce_s() + self.optimizer_s() + self.parameter_gather_s()

    @property
    def _world_link(self) -> Link:
        return self.cluster.link_within(tuple(range(self.cluster.num_gpus)))

    @property
    def _num_trainable(self) -> int:
        return self.state.num_trainable(self.model)

    @property
    def _block_bytes(self) -> float:
        """Bytes of one block's weights, on average."""
        num_weights = model_counts(self.model).block_parameters
        return num_weights * self.state.base_bytes(self.element_bytes)

    @property
    def _swapped_bytes(self) -> float:
        return min(self.state.swapped_layers, self.model.num_blocks) * self._block_bytes

    @property
    def _state_bytes(self) -> int:
        return max(4, self.element_bytes)


@lru_cache(maxsize=65536)
def _training_cost(
    costs: CostModel, num_tokens: int, num_clips: int, group: GpuGroup, /
) -> LaunchCost:
    """The fastest mode that fits, or the one that needs least.

    A ring needs no memory of its own, and recomputing more costs only time. So it is the fastest
    ring at the lowest recompute level that fits.
    """
    options, state, model = costs.options, costs.state, costs.model
    levels = options.recompute_levels(model.num_blocks)
    level, memory = _fitting_memory(costs, num_tokens, num_clips, group.degree, levels)
    rings = options.rings(group.degree, model.num_heads)
    modes = [LaunchMode(ring=ring, recompute_layers=level) for ring in rings or (1,)]
    fixed_s = _fixed_seconds(costs, num_tokens, num_clips, group, level)
    priced = [
        (*_mode_seconds(costs, num_tokens, num_clips, group, mode, fixed_s), mode) for mode in modes
    ]
    compute_s, communicate_s, mode = min(priced, key=lambda each: each[0] + each[1])
    return LaunchCost(
        mode=mode,
        compute_s=compute_s,
        communicate_s=communicate_s,
        memory=memory,
        fits=(
            memory.total <= costs.memory_bytes
            and bool(rings)
            and group.degree <= num_tokens
            and group.degree <= (model_counts(model).flop_inputs.joint_tokens or num_tokens)
            and group.degree % state.parameter_shards == 0
        ),
    )


def _fitting_memory(
    costs: CostModel, num_tokens: int, num_clips: int, degree: int, levels: tuple[int, ...]
) -> tuple[int, MemoryUse]:
    """The lowest of the recompute levels that fits, or else the last, and what it needs."""
    return fitting_use(
        resident_use(costs.model, costs.cluster.num_gpus, costs.element_bytes, costs.state),
        _activations(costs, num_tokens, num_clips, degree),
        levels,
        costs.memory_bytes,
        costs.state.of_shape(num_tokens),
    )


def _mode_seconds(
    costs: CostModel,
    num_tokens: int,
    num_clips: int,
    group: GpuGroup,
    mode: LaunchMode,
    fixed_s: tuple[float, float],
) -> tuple[float, float]:
    """Computing on the slowest GPU, and exchanging, of a training launch in a mode."""
    model, device, degree = costs.model, costs.cluster.device, group.degree
    work = rank_work(model, num_tokens, num_clips, degree, mode, costs.state)
    traffic = launch_traffic(model, num_tokens, num_clips, degree, costs.element_bytes, mode)
    lost_flops = device.half_rate_tokens * work.flops_per_half_rate_token
    compute_s, exchange_s = fixed_s
    compute_s += (work.matmul_flops + lost_flops) / device.matmul_flops_per_s
    compute_s += work.attention_flops / device.attention_flops_per_s
    if mode.ring > 1:
        num_merged = traffic.num_results * mode.ring * traffic.shard_bytes / costs.element_bytes
        compute_s += num_merged * _MERGE_BYTES / device.memory_bytes_per_s
    exchange_s += traffic.seconds(group.link, group.ulysses_link(traffic.ulysses))
    return compute_s / group.speed, exchange_s


def _fixed_seconds(
    costs: CostModel, num_tokens: int, num_clips: int, group: GpuGroup, recompute_layers: int
) -> tuple[float, float]:
    """Computing and exchanging that no ring changes, products not counted."""
    compute_s = costs.launch_overhead_s
    compute_s += recompute_layers * costs.cluster.device.layer_s * _FORWARD_SHARE
    if recompute_layers and costs.state.are_inputs_on_host:
        made = _activations(costs, num_tokens, num_clips, group.degree)
        moved_bytes = made.kept_bytes(recompute_layers)
        moved_bytes -= made.kept_bytes(recompute_layers, are_inputs_on_host=True)
        compute_s += 2.0 * moved_bytes / HOST_BYTES_PER_S
    return compute_s, costs.parameter_exchange_s


def _activations(
    costs: CostModel, num_tokens: int, num_clips: int, degree: int
) -> LaunchActivations:
    state = costs.state
    is_adapted = state.num_adapter_weights is not None
    return launch_activations(
        costs.model, num_tokens, num_clips, degree, costs.element_bytes, is_adapted, state.trained
    )


@lru_cache(maxsize=4096)
def _encoding_cost(
    costs: CostModel, module: Encoder, bucket: Bucket, num_clips: int, group: GpuGroup, /
) -> LaunchCost:
    """An encoder's launch; what stays for training stays in memory meanwhile."""
    encoders = costs.encoders or published_encoders(costs.model, costs.element_bytes)
    work = encoders.work(module, bucket, num_clips, group.degree)
    resident = resident_use(costs.model, costs.cluster.num_gpus, costs.element_bytes, costs.state)
    memory = replace(
        resident,
        encoders=max(resident.encoders, work.parameter_bytes),
        workspace=work.working_bytes,
        reserve=costs.state.reserve_share * work.working_bytes,
    )
    compute_s = encoders.seconds(module, work, num_clips, costs.cluster.device)
    return LaunchCost(
        mode=WHOLE,
        compute_s=compute_s / group.speed,
        communicate_s=0.0,
        memory=memory,
        fits=encoders.can_split(module, bucket, group.degree)
        and memory.total <= costs.memory_bytes,
    )
