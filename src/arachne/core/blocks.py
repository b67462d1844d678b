"""Blocks: the groups of neighbouring GPUs that one launch may use.

Plans use the blocks that `plan_blocks` names, a bounded set, so that a runtime can create their
process groups ahead. A *laminar family* is a set of blocks of which any two are nested or disjoint:
a plan that stays on one never waits inside the iteration. The simplest is a *ladder*: degrees of
which each divides the next, with the blocks [i·d, (i+1)·d) of each.
"""

from collections.abc import Iterable, Mapping, Sequence

from arachne.core.errors import ConfigError

Block = tuple[int, ...]
"""Neighbouring GPUs, ascending."""

_MOST_UNITS = 32
"""Larger worlds of odd sizes have no blocks of their own: each is a group of processes to make."""


def allowed_degrees(num_gpus: int, max_degree: int, *, multiple_of: int = 1) -> tuple[int, ...]:
    """Degrees that planning may use: 2^k and 3·2^k up to `max_degree`, and the whole world.

    In small worlds of other sizes also those that divide them: 5 of 10 GPUs, 7 and 14 of 28. Where
    neighbouring ranks share out parameters, `multiple_of` is how many: degrees are so many times
    those of a world of such groups.

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
    if _is_small_and_odd(num_groups):
        degrees |= {part for part in range(1, most + 1) if num_groups % part == 0}
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

    Those of `aligned_blocks`; in small worlds of other numbers of GPUs than 2^k and 3·2^k, where
    what is left over matters most, also those of `blocks_from_last`: 7 = 3 + 2 + 2. Of
    `allowed_degrees` these are fewer than 5 for each GPU, and no GPU is in more than 3 of one
    degree.
    """
    found = aligned_blocks(num_gpus, degrees)
    if not has_blocks_from_both_ends(num_gpus, degrees):
        return found
    return {
        degree: tuple(sorted({*of_degree, *blocks_from_last(num_gpus, degree)}))
        for degree, of_degree in found.items()
    }


def aligned_blocks(num_gpus: int, degrees: Sequence[int]) -> dict[int, tuple[Block, ...]]:
    """Blocks that leave over what they do at the end, of each degree in order of their first GPU.

    Those of `blocks`; and of 3·2^k GPUs also those that share 8·2^k GPUs, a node perhaps, with
    others: 8 = 3 + 3 + 2 and 4 = 3 + 1, so that they start at 0, 3 or 4 times 2^k there, if that is
    a multiple of the smallest degree.
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


def blocks_from_last(num_gpus: int, degree: int) -> tuple[Block, ...]:
    """Blocks of one degree side by side up to the last GPU; the first GPUs may have none."""
    return _from(range(num_gpus % degree, num_gpus - degree + 1, degree), degree)


def has_blocks_from_both_ends(num_gpus: int, degrees: Sequence[int]) -> bool:
    """Whether plans may use those of `blocks_from_last`: in small worlds of odd sizes.

    A world of 2^k or 3·2^k GPUs is filled in many ways without them.
    """
    return bool(degrees) and _is_small_and_odd(num_gpus // degrees[0])


def _is_small_and_odd(num_units: int) -> bool:
    """Whether a number of GPUs, or of groups of them, is small, and neither 2^k nor 3·2^k."""
    if not 0 < num_units <= _MOST_UNITS:
        return False
    return num_units // (num_units & -num_units) not in (1, 3)


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


def laminar_families(
    by_degree: Mapping[int, Sequence[Block]], most: int
) -> tuple[tuple[Block, ...], ...]:
    """All laminar sets of blocks to which no other of them can be added; none if over `most`.

    Such a set is a maximal independent set of the graph in which blocks that cross are neighbours
    (Bron and Kerbosch, 1973, with their pivot, on the graph of those that do not).
    """
    candidates = [block for of_degree in by_degree.values() for block in of_degree]
    friends = [
        {
            other
            for other, gpus in enumerate(candidates)
            if other != index and not cross(candidates[index], gpus)
        }
        for index in range(len(candidates))
    ]
    found: list[tuple[Block, ...]] = []

    def extend(chosen: list[int], possible: set[int], done: set[int]) -> None:
        if len(found) > most:
            return
        if not possible and not done:
            found.append(tuple(candidates[index] for index in sorted(chosen)))
            return
        pivot = max(sorted(possible | done), key=lambda index: len(possible & friends[index]))
        for index in sorted(possible - friends[pivot]):
            extend([*chosen, index], possible & friends[index], done & friends[index])
            possible = possible - {index}
            done = done | {index}

    extend([], set(range(len(candidates))), set())
    return tuple(found) if len(found) <= most else ()


def cross(one: Block, other: Block) -> bool:
    """Whether two blocks share a GPU without being nested."""
    return one[0] <= other[-1] and other[0] <= one[-1] and _cross(one, other)


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
