"""How often the members of a launch meet, by what its mode says."""

from collections import Counter

from arachne.core.launch_mode import LaunchMode


def meetings_of(mode: LaunchMode, *, degree: int, num_layers: int) -> Counter[str]:
    """Collectives of one launch by operation; a recomputed layer's forward meets twice.

    Ulysses trades tokens for heads and back, in the forward and in the backward. A ring's forward
    shifts keys and values to all other parts; its backward does so again, and brings home each
    other part's share of their gradient.
    """
    if degree == 1:
        return Counter()
    forwards = num_layers + min(mode.recompute_layers, num_layers)
    is_traded = mode.ulysses(degree) > 1
    counts = {
        "all_to_all": 2 * (forwards + num_layers) * is_traded,
        "exchange": (mode.ring - 1) * (forwards + 2 * num_layers),
        "all_gather": 1,
        "reduce_scatter": 1,
    }
    return Counter({name: count for name, count in counts.items() if count})
