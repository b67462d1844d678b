"""Memory of one GPU, item by item: what stays for the whole run, and what one launch adds."""

from dataclasses import dataclass, fields
from functools import lru_cache

from arachne.core.model_shape import ModelShape
from arachne.core.units import bytes_text
from arachne.cost.activations import LaunchActivations
from arachne.cost.model_counts import model_counts
from arachne.cost.training_state import COMMUNICATOR_BYTES, FULL_TRAINING, TrainingState

_MOST_RAISED = 2.0
"""How many times as much as before a launch that ran out of memory is taken to add at most. One
that was far from the limit more likely met another program on the GPU, or a leak; if not, it runs
out again, and its estimate doubles again."""

_JUST_ABOVE = 1.01
"""The estimate is raised to so much of what would have just fitted."""

_WHOLE_BLOCKS = 2
"""Blocks that are whole on the GPU where weights are shared out or swapped: the one that computes
and the one that comes next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Bytes of one GPU, by what they are for.

    Attributes:
        weights: In the model's own type, or as frozen weights are stored.
        gradients: The buffer that launches add to.
        optimizer: Master weights and two moments, shared out over all ranks.
        encoders: Frozen text encoder and autoencoder.
        communicators: Of NCCL.
        activations: Kept from forward to backward.
        workspace: One block's backward.
        reserve: Held by the allocator beyond all this.
    """

    weights: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    encoders: float = 0.0
    communicators: float = 0.0
    activations: float = 0.0
    workspace: float = 0.0
    reserve: float = 0.0

    @property
    def items(self) -> tuple[tuple[str, float], ...]:
        """What is not nothing, as (name, bytes)."""
        pairs = [(field.name, float(getattr(self, field.name))) for field in fields(self)]
        return tuple(pair for pair in pairs if pair[1] > 0.0)

    @property
    def resident(self) -> float:
        """What stays for the whole run."""
        return self.weights + self.gradients + self.optimizer + self.encoders + self.communicators

    @property
    def total(self) -> float:
        """All of it."""
        return self.resident + self.activations + self.workspace + self.reserve

    @property
    def text(self) -> str:
        """The sum as people read it: `weights 25.6 GB + gradients 51.3 GB = 76.9 GB`."""
        parts = " + ".join(f"{name} {bytes_text(size)}" for name, size in self.items)
        return f"{parts} = {bytes_text(self.total)}"


@lru_cache(maxsize=1024)
def resident_use(
    shape: ModelShape, world_size: int, element_bytes: int, state: TrainingState, /
) -> MemoryUse:
    """What every rank holds all the time.

    With P parameters of e bytes, of them B in L blocks (b bytes each), n of these blocks swapped,
    A parameters trained (P, a part of them, or those of adapters), gradients of g bytes, o bytes of
    master weight and optimizer state (AdamW: 3·max(4, e)), weights shared out over q ranks and I
    parameters idle:

        weights   = ((P − B)·e + B·b·(L − n)/L) / q (+ A·e of adapters) + 2 blocks if n > 0 or q > 1
                    + I·e
        gradients = A·g / q        optimizer = o·A / world

    Source: ZeRO stages 1 and 3 (Rajbhandari et al., 2020). Ignores the one gradient that autograd
    has just made and the bucket that is on its way to the host.
    """
    counts = model_counts(shape)
    in_blocks = counts.block_parameters * shape.num_blocks
    base_bytes = state.base_bytes(element_bytes)
    num_trainable = state.num_trainable(shape)
    swapped = min(state.swapped_layers, shape.num_blocks)
    here = in_blocks * (1.0 - swapped / shape.num_blocks) * base_bytes
    weights = ((counts.parameters - in_blocks) * element_bytes + here) / state.parameter_shards
    if swapped or state.parameter_shards > 1:
        weights += min(_WHOLE_BLOCKS, shape.num_blocks) * counts.block_parameters * base_bytes
    if state.num_adapter_weights is not None:
        weights += num_trainable * element_bytes
    weights += counts.idle_parameters * element_bytes
    gradient_bytes = state.gradient_bytes(element_bytes)
    return MemoryUse(
        weights=weights,
        gradients=num_trainable * gradient_bytes / state.parameter_shards,
        optimizer=state.owned_bytes(element_bytes) * num_trainable / world_size,
        encoders=state.frozen_encoder_bytes,
        communicators=state.num_communicators * COMMUNICATOR_BYTES,
    )


def launch_use(
    resident: MemoryUse,
    made: LaunchActivations,
    recompute_layers: int = 0,
    state: TrainingState = FULL_TRAINING,
) -> MemoryUse:
    """What one rank of a training launch needs in all, at a recompute level.

    The reserve is a share of what the launch adds: what stays for the whole run is allocated once
    and leaves no holes.

    Args:
        resident: What it holds all the time.
        made: What the launch keeps if nothing is recomputed.
        recompute_layers: Blocks that are.
        state: Where block inputs lie, and how much is reserved.
    """
    kept = made.kept_bytes(recompute_layers, are_inputs_on_host=state.are_inputs_on_host)
    return MemoryUse(  # written out: `replace` takes three times as long, in every question
        weights=resident.weights,
        gradients=resident.gradients,
        optimizer=resident.optimizer,
        encoders=resident.encoders,
        communicators=resident.communicators,
        activations=kept,
        workspace=made.work_bytes,
        reserve=state.reserve_share * (kept + made.work_bytes),
    )


def fitting_use(
    resident: MemoryUse,
    made: LaunchActivations,
    levels: tuple[int, ...],
    memory_bytes: float,
    state: TrainingState = FULL_TRAINING,
) -> tuple[int, MemoryUse]:
    """The first of some recompute levels at which a launch fits, or the last one; and its memory.

    `levels` ascend, so that each needs no more than the one before it.
    """
    for level in levels[:-1]:
        use = launch_use(resident, made, level, state)
        if use.total <= memory_bytes:
            return level, use
    return levels[-1], launch_use(resident, made, levels[-1], state)


def raised_reserve(use: MemoryUse, memory_bytes: float) -> float:
    """Reserve share of a launch that ran out of memory though it was expected to use `use`.

    It needed at least what there was, so its estimate becomes that, and a little more:

        (1 + share) · (activations + workspace) = 1.01 · (memory − resident)

    but at most twice what it was, and at least 1 % more.
    """
    added_bytes = use.activations + use.workspace
    before = 1.0 + use.reserve / added_bytes
    limit = _JUST_ABOVE * (memory_bytes - use.resident) / added_bytes
    return max(_JUST_ABOVE * before, min(limit, _MOST_RAISED * before)) - 1.0
