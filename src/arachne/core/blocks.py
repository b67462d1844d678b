"""Blocks: the groups of neighbouring GPUs that one launch may use.

Blocks of degree d are [i·d, (i+1)·d). A *ladder* is a set of degrees whose blocks are laminar (any
two nested or disjoint), so that a plan which stays on one ladder never waits inside the iteration.
"""


def allowed_degrees(num_gpus: int, max_degree: int) -> tuple[int, ...]:
    """Degrees that planning may use: 2^k and 3·2^k up to `max_degree`, and the whole world."""
    limit = min(num_gpus, max_degree)
    degrees = {num_gpus} if num_gpus <= max_degree else set[int]()
    for base in (1, 3):
        degree = base
        while degree <= limit:
            degrees.add(degree)
            degree *= 2
    return tuple(sorted(degrees))


def blocks(num_gpus: int, degree: int) -> tuple[tuple[int, ...], ...]:
    """All blocks of one degree, in order; GPUs left over after the last whole block have none."""
    return tuple(
        tuple(range(first, first + degree)) for first in range(0, num_gpus - degree + 1, degree)
    )


def ladders(num_gpus: int, degrees: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Every maximal chain of degrees in which each divides the next.

    The whole world nests with every block, so it ends each chain when it is allowed.
    For 6 GPUs and degrees (1, 2, 3, 6): (1, 2, 6) and (1, 3, 6).
    """
    top = (num_gpus,) if num_gpus in degrees else ()
    inner = tuple(degree for degree in degrees if degree != num_gpus)
    chains = [chain for chain in _chains(inner) if chain]
    maximal = [c for c in chains if not any(set(c) < set(other) for other in chains)]
    return tuple(chain + top for chain in sorted(maximal)) or ((top,) if top else ())


def _chains(degrees: tuple[int, ...]) -> list[tuple[int, ...]]:
    """All divisibility chains (not only maximal ones) of ascending degrees, the empty one too."""
    chains: list[tuple[int, ...]] = [()]
    for degree in degrees:
        chains += [(*c, degree) for c in chains if not c or degree % c[-1] == 0]
    return chains
