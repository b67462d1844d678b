"""Assignments made of whole configurations, for a given time.

The fewest GPUs that do all work in that time (`planner/configurations.py`) say how many blocks
should run which stacks: also how many clips of a shape should have which degree, and which part of
the cluster should use which ladder. Amounts are rounded to blocks; what is left over goes, clip by
clip, where it costs least.
"""

from collections.abc import Mapping, Sequence
from math import fsum

from arachne.core.blocks import Block, aligned_blocks
from arachne.planner.assignment import Assignment
from arachne.planner.configurations import Configuration, Knapsack, Stack, cover
from arachne.planner.trees import Trees
from arachne.planner.variants import Variants

_TICKS = 400
"""The time is cut into so many ticks; seconds are rounded to the nearest."""

_MOST_PIVOTS = 60

_NEARLY = 1e-6

Ladder = tuple[int, ...]

_Part = tuple[float, tuple[Stack, ...]]
"""GPUs that run the same stacks."""

_Placed = tuple[Block, Stack]


class ConfigurationStarts:
    """Makes assignments for different times; keeps what they share."""

    def __init__(self, variants: Variants, trees: Trees) -> None:
        self._variants = variants
        self._trees = trees
        problem = variants.problem
        self._blocks = problem.blocks
        self._aligned = aligned_blocks(problem.num_gpus, problem.degrees)
        self._fastest: dict[int, list[Block]] = {}
        self._known: dict[Configuration, float] = {}

    def within(self, limit_s: float, ladders: Sequence[Ladder]) -> Assignment | None:
        """An assignment about as long as the limit, each part of it on one of the ladders.

        None if configurations of these ladders have no room for all clips, or if what rounding
        leaves over fits nowhere.
        """
        variants = self._variants
        num_gpus = variants.problem.num_gpus
        counts = [float(len(slots)) for slots in variants.slots_of_shape]
        knapsacks = [Knapsack(self._stacks(ladder, limit_s), _TICKS) for ladder in ladders]
        found = cover(counts, knapsacks, _MOST_PIVOTS, self._known_within(limit_s, ladders))
        if found is None:
            return None
        for _, configuration in found.amounts:
            if configuration not in self._known:
                self._known[configuration] = self._seconds(configuration)
        if found.num_gpus > num_gpus * (1.0 + 1.0 / _TICKS):
            return None
        parts = [(amount, configuration.stacks) for amount, configuration in found.amounts]
        degrees = variants.problem.degrees[::-1]
        everyone = tuple(range(num_gpus))
        placed = self._laid_out(dict.fromkeys(everyone, everyone), degrees, parts)
        return self._assigned(placed, limit_s)

    def _known_within(self, limit_s: float, ladders: Sequence[Ladder]) -> list[Configuration]:
        """Configurations found for other times that fit here too."""
        return [
            configuration
            for configuration, seconds in self._known.items()
            if seconds <= limit_s
            and any(all(s.degree in ladder for s in configuration.stacks) for ladder in ladders)
        ]

    def _seconds(self, configuration: Configuration) -> float:
        return fsum(
            self._variants.fastest_s((stack.shape, stack.num_clips), stack.degree)
            for stack in configuration.stacks
        )

    def _stacks(self, degrees: Sequence[int], limit_s: float) -> list[Stack]:
        """Stacks within the limit, but none that takes as long as one of more clips per GPU."""
        found: list[Stack] = []
        for shape in range(self._variants.num_shapes):
            of_shape: list[Stack] = []
            for degree in degrees:
                for size in range(1, self._variants.most_clips(shape) + 1):
                    seconds = self._variants.fastest_s((shape, size), degree)
                    if seconds <= limit_s * (1.0 + _NEARLY):
                        ticks = min(max(round(seconds / limit_s * _TICKS), 1), _TICKS)
                        of_shape.append(
                            Stack(ticks=ticks, shape=shape, num_clips=size, degree=degree)
                        )
            most = 0.0
            for stack in sorted(of_shape, key=lambda s: (s.ticks, -s.share, s.degree)):
                if stack.share > most * (1.0 + _NEARLY):
                    most = stack.share
                    found.append(stack)
        return found

    def _laid_out(
        self, free: dict[int, Block], degrees: Sequence[int], parts: Sequence[_Part]
    ) -> list[_Placed]:
        """Stacks on free GPUs, each inside the block that its GPU is free in.

        The largest degree first; then what is to run beside each of its stacks, in their blocks.
        """
        if not degrees or not parts or not free:
            return []
        degree, smaller = degrees[0], degrees[1:]
        groups: dict[tuple[Stack, ...], list[_Part]] = {}
        for amount, stacks in parts:
            here = tuple([stack for stack in stacks if stack.degree == degree])
            rest = tuple([stack for stack in stacks if stack.degree < degree])
            groups.setdefault(here, []).append((amount, rest))
        others = groups.pop((), [])
        placed: list[_Placed] = []
        for here, num_blocks in _rounded(groups, degree):
            taken = self._taken(degree, num_blocks, free)
            if not taken:
                others += groups[here]
                continue
            placed += [(block, stack) for block in taken for stack in here]
            within = {gpu: block for block in taken for gpu in block}
            free = {gpu: block for gpu, block in free.items() if gpu not in within}
            placed += self._laid_out(within, smaller, groups[here])
        return placed + self._laid_out(free, smaller, others)

    def _taken(self, degree: int, num_blocks: int, free: Mapping[int, Block]) -> list[Block]:
        """The fastest blocks of a degree on free GPUs, at most so many."""
        if degree not in self._fastest:
            self._fastest[degree] = self._fastest_first(degree)
        found: list[Block] = []
        left = dict(free)
        for block in self._fastest[degree]:
            if len(found) == num_blocks:
                break
            around = left.get(block[0])
            if around is not None and all(left.get(gpu) is around for gpu in block):
                found.append(block)
                for gpu in block:
                    del left[gpu]
        return found

    def _fastest_first(self, degree: int) -> list[Block]:
        """Blocks of a degree, those that cost less first, then those that are aligned."""
        variants = self._variants
        aligned = set(self._aligned[degree])
        block_s = {
            kind: [variants.duration_s((shape, 1), gpus) for shape in range(variants.num_shapes)]
            for gpus in variants.kinds_of_degree[degree]
            for kind in [variants.kind(gpus)]
        }
        return sorted(
            self._blocks[degree],
            key=lambda gpus: (block_s[variants.kind(gpus)], gpus not in aligned, gpus),
        )

    def _assigned(self, placed: Sequence[_Placed], limit_s: float) -> Assignment | None:
        """The stacks and all clips that are left; None if one of these fits on no block here."""
        costs = self._trees.with_blocks(sorted({b for b, _ in placed}, key=lambda b: (-len(b), b)))
        node_of_block = {gpus: node for node, gpus in enumerate(costs.tree.gpus) if gpus}
        left = [len(slots) for slots in self._variants.slots_of_shape]
        made = Assignment(costs)
        for block, stack in placed:
            num_clips = min(stack.num_clips, left[stack.shape])
            if num_clips and made.can_add(stack.shape, num_clips, node_of_block[block]):
                made.add(stack.shape, num_clips, node_of_block[block])
                left[stack.shape] -= num_clips
        return made if made.fill(left, limit_s) else None


def _rounded(
    groups: Mapping[tuple[Stack, ...], Sequence[_Part]], degree: int
) -> list[tuple[tuple[Stack, ...], int]]:
    """How many blocks each group gets, the largest first: fractions sum up, the largest win."""
    whole: dict[tuple[Stack, ...], int] = {}
    fractions: list[tuple[float, int, tuple[Stack, ...]]] = []
    for index, (stacks, parts) in enumerate(groups.items()):
        num_blocks = fsum([amount for amount, _ in parts]) / degree
        whole[stacks] = int(num_blocks + _NEARLY)
        fractions.append((num_blocks - whole[stacks], -index, stacks))
    num_more = int(fsum([fraction for fraction, _, _ in fractions]) + 0.5)
    for _, _, stacks in sorted(fractions, reverse=True)[:num_more]:
        whole[stacks] += 1
    return sorted(whole.items(), key=lambda item: -item[1])
