"""What gives a launch more room under the same storage: more GPUs, and leave to use them."""

from collections.abc import Iterator
from itertools import combinations

from arachne.core.blocks import allowed_degrees
from arachne.core.cascade import Cascade
from arachne.cost.model import CostModel

_WIDER = "raise planner.max_degree"
_RING = "set planner.ring=auto"
_MORE_GPUS = "use more GPUs"

_MANY = 2**30
"""GPUs that are as many as one likes."""


def roomier_text(
    costs: CostModel, cascade: Cascade, gpus: tuple[int, ...], smaller: str, *, max_degree: int
) -> str:
    """All that helps a launch which does not fit, the least first; nothing that cannot help.

    Smaller clips help only if what every GPU holds all the time leaves room for any. GPUs share out
    a launch's tokens as far as `planner.max_degree`, their number, and without a ring the model's
    heads allow; and the optimizer however many they are. What helps only together is told together.

    Args:
        costs: What it costs, with what a GPU may use.
        cascade: What does not fit.
        gpus: Some that it was tried on.
        smaller: How to get clips that need less, such as `lower data.resolution`.
        max_degree: `planner.max_degree`; 0 where it does not limit degrees.
    """
    found: list[tuple[str, ...]] = []
    for changes in _changes(costs):
        is_new = not any(set(fewer) <= set(changes) for fewer in found)
        if is_new and _fits_with(changes, costs, cascade, gpus, max_degree):
            found.append(changes)
    ways = [" and ".join(changes) for changes in found]
    if costs.memory(cascade, gpus).resident < costs.memory_bytes:
        ways.insert(ways.count(_WIDER), smaller)
    if ways and ways[-1] == _MORE_GPUS:
        ways[-1] += " or GPUs with more memory"
    else:
        ways.append("use GPUs with more memory")
    return ", or ".join(ways)


def widest_degree(costs: CostModel) -> int:
    """The largest degree that `planner.max_degree` could allow on these GPUs."""
    most = costs.cluster.num_gpus
    if costs.options.is_limited_by_heads:
        most = min(most, costs.model.num_heads)
    return allowed_degrees(costs.cluster.num_gpus, most, multiple_of=costs.state.parameter_shards)[
        -1
    ]


def _changes(costs: CostModel) -> Iterator[tuple[str, ...]]:
    """All sets of changes, small ones first, and settings before GPUs."""
    may_set_ring = costs.options.is_limited_by_heads and costs.options.can_ring
    known = (_WIDER, _RING, _MORE_GPUS) if may_set_ring else (_WIDER, _MORE_GPUS)
    for number in range(1, len(known) + 1):
        yield from combinations(known, number)


def _fits_with(
    changes: tuple[str, ...],
    costs: CostModel,
    cascade: Cascade,
    gpus: tuple[int, ...],
    max_degree: int,
) -> bool:
    """Whether a launch fits on the widest group that it may then have."""
    shards = costs.state.parameter_shards
    num_gpus = shards * _MANY if _MORE_GPUS in changes else costs.cluster.num_gpus
    limits = [num_gpus, cascade.num_tokens]
    if max_degree and _WIDER not in changes:
        limits.append(max_degree)
    if costs.options.is_limited_by_heads and _RING not in changes:
        limits.append(costs.model.num_heads)
    most = max(min(limits), shards)
    degree = allowed_degrees(num_gpus, most, multiple_of=shards)[-1]
    use = costs.memory_in(costs.mode(cascade, gpus), cascade, degree)
    if _MORE_GPUS in changes:  # so many that each holds next to nothing of the optimizer
        return use.total - use.optimizer < costs.memory_bytes
    return use.total <= costs.memory_bytes
