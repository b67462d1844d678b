"""Settings with which a launch would fit, and what they cost.

Changes are told as `--set` takes them: `optimizer.gradients=bfloat16`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from arachne.core.cascade import Cascade
from arachne.core.units import bytes_text
from arachne.cost.model import CostModel, LaunchCost
from arachne.cost.training_state import BaseBits, GradientStorage, TrainingState, lora_weights

_LORA_RANK = 16
"""Rank of the adapters that are proposed where the whole model does not fit."""

_MOST_WAYS = 4
"""Ways that one message tells."""

_RECOMPUTE = "planner.recompute"

_BASES: dict[BaseBits, str] = {8: "fp8", 4: "nf4"}
"""What `memory.base` calls weights of so many bits."""

_HOST_IS_DEVICE = "CPU core"
"""Name of the device in `clusters/cpu.toml`: there is no other memory to move things to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittingState:
    """A way to store the state in which a launch fits.

    Attributes:
        changes: Settings that differ from those that were asked about; none if it fits as it is.
        costs: The cost model with it.
        cost: Of the launch.
    """

    changes: tuple[str, ...]
    costs: CostModel
    cost: LaunchCost

    @property
    def launch_s(self) -> float:
        """Seconds of the launch."""
        return self.cost.compute_s + self.cost.communicate_s


def fitting_states(
    costs: CostModel, cascade: Cascade, gpus: tuple[int, ...]
) -> tuple[FittingState, ...]:
    """All of a fixed list of states in which a launch fits, the cheapest first.

    Each recomputes as much as it needs, in quarters of the blocks. A run that trains the whole
    model is offered smaller gradients, gradients on the host, and adapters. One that trains
    adapters is offered fewer bits, or blocks that wait on the host, and block inputs there.
    """
    levels_before = costs.mode(cascade, gpus).recompute_layers
    found: list[FittingState] = []
    for changes, state in _states(costs):
        recompute = "all" if state.swapped_layers else "auto"  # swapped blocks keep nothing
        options = replace(costs.options, recompute=recompute)
        changed = replace(costs, state=state, options=options)
        cost = changed.launch_cost(cascade, gpus)
        recomputes = cost.mode.recompute_layers > 0
        if not cost.fits or (state.are_inputs_on_host and not recomputes):
            continue
        needs_all = state.swapped_layers > 0 and costs.options.recompute != "all"
        if needs_all or cost.mode.recompute_layers > levels_before:
            changes = (*changes, f"{_RECOMPUTE}={recompute}")
        found.append(FittingState(changes=changes, costs=changed, cost=cost))
    return tuple(sorted(found, key=lambda state: state.launch_s))


def fitting_text(costs: CostModel, cascade: Cascade, gpus: tuple[int, ...]) -> str:
    """What would make a launch fit, each kind of change in its cheapest form; empty if nothing.

    Changes that include all of another set that suffices are left out. For example
    `fits with optimizer.gradients=bfloat16 and planner.recompute=auto (62.1 GB), or with …`.
    """
    states = fitting_states(costs, cascade, gpus)
    cheapest: dict[str, FittingState] = {}
    for state in states:
        if not any(_kinds(other.changes) < _kinds(state.changes) for other in states):
            cheapest.setdefault(state.changes[0] if state.changes else "", state)
    ways = [
        f"{' and '.join(cheapest[change].changes)} "
        f"({bytes_text(cheapest[change].cost.memory.total)})"
        for change in dict.fromkeys(_first_changes(costs))
        if change in cheapest
    ]
    return "fits with " + ", or with ".join(ways[:_MOST_WAYS]) if ways else ""


def _kinds(changes: tuple[str, ...]) -> set[str]:
    """The changes, with recomputing everything counted as recomputing what is needed."""
    return {_RECOMPUTE if change.startswith(_RECOMPUTE) else change for change in changes}


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
        "attention heads; lower planner.max_degree"
        + (", or set planner.ring=auto" if costs.options.can_ring else "")
    )


def _first_changes(costs: CostModel) -> Iterator[str]:
    """Kinds of change in the order in which they are told."""
    for changes, _ in _states(costs):
        yield (*changes, f"{_RECOMPUTE}=auto")[0]


_Changed = tuple[tuple[str, ...], TrainingState]
"""What changes, in words, and the state."""


def _states(costs: CostModel) -> Iterator[_Changed]:
    if costs.state.num_adapter_weights is None:
        yield from _trained_states(costs)
        adapters = lora_weights(costs.model, _LORA_RANK)
        state = replace(costs.state, num_adapter_weights=adapters, trained=None)
        words = f"lora.rank={_LORA_RANK}"
        yield from (((words, *more), changed) for more, changed in _adapted_states(costs, state))
    else:
        yield from _adapted_states(costs, costs.state)


def _trained_states(costs: CostModel) -> Iterator[_Changed]:
    """The whole model is trained."""
    yield (), costs.state
    storages: tuple[GradientStorage, ...] = ("bfloat16", "host")
    for gradients in storages if _has_host(costs) else storages[:1]:
        changes = (f"optimizer.gradients={gradients}",)
        yield changes, replace(costs.state, gradients=gradients)


def _adapted_states(costs: CostModel, state: TrainingState) -> Iterator[_Changed]:
    """Adapters are trained beside frozen weights."""
    num_blocks = costs.model.num_blocks
    choices: tuple[BaseBits | None, ...] = (state.base_bits, 8, 4)
    swaps = (state.swapped_layers, num_blocks // 2, num_blocks) if _has_host(costs) else (0,)
    hosts = (False, True) if _has_host(costs) else (False,)
    for bits, swapped, are_inputs_on_host in product(dict.fromkeys(choices), swaps, hosts):
        if bits is not None and swapped:
            continue  # `[memory]` refuses both together
        changes: list[str] = []
        if bits is not None and bits != state.base_bits:
            changes.append(f"memory.base={_BASES[bits]}")
        if swapped != state.swapped_layers:
            changes.append(f"memory.swapped_blocks={swapped}")
        if are_inputs_on_host and not state.are_inputs_on_host:
            changes.append("memory.inputs_on_host=true")
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
