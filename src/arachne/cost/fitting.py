"""Other ways to store a training's state in which a launch would fit, and what they cost."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from arachne.core.cascade import Cascade
from arachne.core.units import bytes_text
from arachne.cost.model import CostModel, LaunchCost
from arachne.cost.training_state import BaseBits, TrainingState, lora_weights

_LORA_RANK = 16
"""Rank of the adapters that are proposed where the whole model does not fit."""

_MOST_WAYS = 4
"""Ways that one message tells."""

_RECOMPUTATION = "recomputation"

_HOST_IS_DEVICE = "CPU core"
"""Name of the device in `clusters/cpu.toml`: there is no other memory to move things to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittingState:
    """A way to store the state in which a launch fits.

    Attributes:
        changes: What differs from the state that was asked about; none if it fits as it is.
        costs: The cost model with it.
        gpus: Where the launch runs: as asked, or the whole groups that share out parameters.
        cost: Of the launch.
    """

    changes: tuple[str, ...]
    costs: CostModel
    gpus: tuple[int, ...]
    cost: LaunchCost

    @property
    def gpu_s(self) -> float:
        """GPU-seconds of the launch."""
        return len(self.gpus) * (self.cost.compute_s + self.cost.communicate_s)


def fitting_states(
    costs: CostModel, cascade: Cascade, gpus: tuple[int, ...]
) -> tuple[FittingState, ...]:
    """All of a fixed list of states in which a launch fits, the cheapest first.

    Each recomputes as much as it needs, in quarters of the blocks. A run that trains the whole
    model is offered smaller gradients, or gradients on the host, parameters shared out inside a
    node, and adapters. One that trains adapters is offered fewer bits, blocks that wait on the
    host, and block inputs there.
    """
    options = replace(costs.options, recompute="auto")
    levels_before = costs.mode(cascade, gpus).recompute_layers
    found: list[FittingState] = []
    for changes, state in _states(costs):
        changed = replace(costs, state=state, options=options)
        group = _whole_groups(gpus, state.parameter_shards)
        cost = changed.launch_cost(cascade, group)
        recomputes = cost.mode.recompute_layers > 0
        if not cost.fits or (state.are_inputs_on_host and not recomputes):
            continue
        if cost.mode.recompute_layers > levels_before:
            changes = (*changes, _RECOMPUTATION)
        found.append(FittingState(changes=changes, costs=changed, gpus=group, cost=cost))
    return tuple(sorted(found, key=lambda state: state.gpu_s))


def fitting_text(costs: CostModel, cascade: Cascade, gpus: tuple[int, ...]) -> str:
    """What would make a launch fit, each kind of change in its cheapest form; empty if nothing.

    Changes that include all of another set that suffices are left out. For example
    `fits with bfloat16 gradients and recomputation (62.1 GB), or with …`.
    """
    states = fitting_states(costs, cascade, gpus)
    cheapest: dict[str, FittingState] = {}
    for state in states:
        if not any(set(other.changes) < set(state.changes) for other in states):
            cheapest.setdefault(state.changes[0] if state.changes else "", state)
    ways = [
        f"{' and '.join(cheapest[change].changes)} "
        f"({bytes_text(cheapest[change].cost.memory.total)})"
        for change in dict.fromkeys(_first_changes(costs))
        if change in cheapest
    ]
    return "fits with " + ", or with ".join(ways[:_MOST_WAYS]) if ways else ""


def misfit_text(costs: CostModel, cascade: Cascade, gpus: tuple[int, ...]) -> str:
    """Why a launch that has enough memory cannot run on these GPUs, and what to change."""
    degree, state = len(gpus), costs.state
    if cascade.module != "dit":
        return f"cannot be encoded ({cascade.module}) by {degree} GPUs together; allow degree 1"
    if degree > cascade.num_tokens:
        return f"has too few tokens for {degree} GPUs; lower planner.max_degree"
    if degree % state.parameter_shards:
        return (
            f"would run on {degree} GPUs, but groups of {state.parameter_shards} share out the "
            f"parameters; allow degrees that are multiples of {state.parameter_shards}"
        )
    return (
        f"would leave some of {degree} GPUs without one of the model's {costs.model.num_heads} "
        "attention heads; lower planner.max_degree, or allow rings"
    )


def _first_changes(costs: CostModel) -> Iterator[str]:
    """Kinds of change in the order in which they are told."""
    for changes, _ in _states(costs):
        yield (*changes, _RECOMPUTATION)[0]


_Changed = tuple[tuple[str, ...], TrainingState]
"""What changes, in words, and the state."""


def _states(costs: CostModel) -> Iterator[_Changed]:
    if costs.state.num_adapter_weights is None:
        yield from _trained_states(costs)
        adapters = lora_weights(costs.model, _LORA_RANK)
        state = replace(costs.state, num_adapter_weights=adapters)
        words = f"LoRA of rank {_LORA_RANK}"
        yield from (((words, *more), changed) for more, changed in _adapted_states(costs, state))
    else:
        yield from _adapted_states(costs, costs.state)


def _trained_states(costs: CostModel) -> Iterator[_Changed]:
    """The whole model is trained."""
    node = costs.cluster.gpus_per_node
    shared: list[_Changed] = [((), costs.state)]
    if node > costs.state.parameter_shards:
        words = f"parameters shared out over {node} GPUs"
        shared.append(((words,), replace(costs.state, parameter_shards=node)))
    for words, state in shared:
        yield words, state
        yield (*words, "bfloat16 gradients"), replace(state, gradients="bfloat16")
        if _has_host(costs):
            yield (*words, "gradients on the host"), replace(state, gradients="host")


def _adapted_states(costs: CostModel, state: TrainingState) -> Iterator[_Changed]:
    """Adapters are trained beside frozen weights."""
    num_blocks = costs.model.num_blocks
    choices: tuple[BaseBits | None, ...] = (state.base_bits, 8, 4)
    swaps = (state.swapped_layers, num_blocks // 2, num_blocks) if _has_host(costs) else (0,)
    hosts = (False, True) if _has_host(costs) else (False,)
    for bits, swapped, are_inputs_on_host in product(choices, swaps, hosts):
        changes: list[str] = []
        if bits != state.base_bits:
            changes.append(f"a base of {bits} bits")
        if swapped != state.swapped_layers:
            changes.append(f"{swapped} blocks on the host")
        if are_inputs_on_host != state.are_inputs_on_host:
            changes.append("block inputs on the host")
        yield (
            tuple(changes),
            replace(
                state,
                base_bits=bits,
                swapped_layers=swapped,
                are_inputs_on_host=are_inputs_on_host,
            ),
        )


def _has_host(costs: CostModel) -> bool:
    return costs.cluster.device.name != _HOST_IS_DEVICE


def _whole_groups(gpus: tuple[int, ...], num_shards: int) -> tuple[int, ...]:
    """The ranks, with all that share out parameters with them."""
    firsts = sorted({gpu // num_shards * num_shards for gpu in gpus})
    return tuple(rank for first in firsts for rank in range(first, first + num_shards))
