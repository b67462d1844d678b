"""Blocks: the groups of neighbouring GPUs that one launch may use.

Plans use the blocks that `plan_blocks` names, a bounded set, so that a runtime can create their
process groups ahead. A *laminar family* is a set of blocks of which any two are nested or disjoint:
a plan that stays on one never waits inside the iteration. The simplest is a *ladder*: degrees of
which each divides the next, with the blocks [i·d, (i+1)·d) of each.
"""

from collections.abc import Iterable, Sequence

from arachne.core.errors import ConfigError

Block = tuple[int, ...]
"""Neighbouring GPUs, ascending."""


def allowed_degrees(num_gpus: int, max_degree: int, *, multiple_of: int = 1) -> tuple[int, ...]:
    """Degrees that planning may use: 2^k and 3·2^k up to `max_degree`, and the whole world.

    Where neighbouring ranks share out parameters, `multiple_of` is how many: degrees are so many
    times those of a world of such groups.

    Raises:
        ConfigError: The GPUs do not fill groups of `multiple_of`, or one is larger than allowed.
    """
    if num_gpus % multiple_of or max_degree < multiple_of:
        raise ConfigError(
            f"{num_gpus} GPUs and degrees up to {max_degree} do not allow groups of {multiple_of} "
            "GPUs that share out parameters; use a number of GPUs and a largest degree that are "
            f"multiples of {multiple_of}"
        )
    num_groups = num_gpus // multiple_of
    most = max_degree // multiple_of
    degrees = {num_groups} if num_groups <= most else set[int]()
    for base in (1, 3):
        degree = base
        while degree <= min(num_groups, most):
            degrees.add(degree)
            degree *= 2
    return tuple(multiple_of * degree for degree in sorted(degrees))


def blocks(num_gpus: int, degree: int) -> tuple[Block, ...]:
    """Blocks of one degree side by side; GPUs left over after the last whole block have none."""
    return _from(range(0, num_gpus - degree + 1, degree), degree)


def plan_blocks(num_gpus: int, degrees: Sequence[int]) -> dict[int, tuple[Block, ...]]:
    """All blocks that plans may use, of each degree in order of their first GPU.

    Those of `blocks`; and of 3·2^k GPUs also those that share 8·2^k GPUs, a node perhaps, with
    others: 8 = 3 + 3 + 2 and 4 = 3 + 1, so that they start at 0, 3 or 4 times 2^k there, if that is
    a multiple of the smallest degree. Of `allowed_degrees` these are fewer than 4 for each GPU, and
    no GPU is in more than 3 of one degree.
    """
    found: dict[int, tuple[Block, ...]] = {}
    for degree in degrees:
        firsts = set(range(0, num_gpus - degree + 1, degree))
        unit, rest = divmod(degree, 3)
        if rest == 0 and unit & (unit - 1) == 0:
            shared = range(0, num_gpus, 8 * unit)
            more = [first + offset for first in shared for offset in (0, 3 * unit, 4 * unit)]
            firsts |= {f for f in more if f + degree <= num_gpus and f % degrees[0] == 0}
        found[degree] = _from(sorted(firsts), degree)
    return found


def _from(firsts: Iterable[int], degree: int) -> tuple[Block, ...]:
    return tuple(tuple(range(first, first + degree)) for first in firsts)


def laminar(num_gpus: int, candidates: Iterable[Block]) -> tuple[Block, ...]:
    """The candidates without those that cross an earlier one, in their order, each once."""
    around: list[list[Block]] = [[] for _ in range(num_gpus)]
    chosen: dict[Block, None] = {}
    for block in candidates:
        ends = (block[0], block[-1])  # a block that crosses this one holds one of its ends
        crosses = any(_cross(block, other) for gpu in ends for other in around[gpu])
        if block not in chosen and not crosses:
            chosen[block] = None
            for gpu in block:
                around[gpu].append(block)
    return tuple(chosen)


def _cross(one: Block, other: Block) -> bool:
    """Whether two blocks that share a GPU are not nested."""
    return (one[0] - other[0]) * (one[-1] - other[-1]) > 0


def ladders(num_gpus: int, degrees: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Every maximal chain of degrees in which each divides the next.

    The whole world nests with every block, so it ends each chain when it is allowed.
    For 6 GPUs and degrees (1, 2, 3, 6): (1, 2, 6) and (1, 3, 6).
    """
    top = (num_gpus,) if num_gpus in degrees else ()
    inner = [degree for degree in degrees if degree != num_gpus]
    firsts = [d for d in inner if not any(d % other == 0 for other in inner if other < d)]
    chains = [chain for degree in firsts for chain in _chains_from(degree, inner)]
    return tuple(chain + top for chain in sorted(chains)) or ((top,) if top else ())


def _chains_from(degree: int, degrees: Sequence[int]) -> list[tuple[int, ...]]:
    """Chains of divisors that start with a degree and leave none out between two or at the end."""
    multiples = [other for other in degrees if other > degree and other % degree == 0]
    nexts = [d for d in multiples if not any(d % other == 0 for other in multiples if other < d)]
    return [(degree, *rest) for d in nexts for rest in _chains_from(d, degrees)] or [(degree,)]
