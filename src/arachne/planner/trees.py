"""The block trees that a problem's plans may lie on; each is made once."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from math import inf

from arachne.core.blocks import (
    Block,
    aligned_blocks,
    blocks,
    blocks_from_last,
    ladders,
    laminar_families,
)
from arachne.core.plan import Plan
from arachne.planner.assignment import TreeCosts
from arachne.planner.block_tree import widest_tree
from arachne.planner.variants import Variants

MOST_GPUS, MOST_FAMILIES = 16, 40
"""Worlds in which all trees are tried, if they are no more than these."""


class Trees:
    """Trees with the costs on them."""

    def __init__(self, variants: Variants) -> None:
        self._variants = variants
        self._known: dict[tuple[Block, ...], TreeCosts] = {}
        problem = variants.problem
        self._blocks = aligned_blocks(problem.num_gpus, problem.degrees)
        self._num_blocks = sum(map(len, problem.blocks.values()))

    def with_blocks(self, preferred: Iterable[Block]) -> TreeCosts:
        """A tree that has these blocks, as far as they do not cross earlier ones."""
        if self._has_all:
            return next(iter(self._known.values()))
        problem = self._variants.problem
        tree = widest_tree(
            problem.num_gpus,
            problem.degrees,
            preferred,
            from_both_ends=problem.has_blocks_from_both_ends,
        )
        known = self._known.get(tree.gpus)
        if known is None:
            known = self._known[tree.gpus] = TreeCosts(self._variants, tree)
        return known

    def with_blocks_of(self, plan: Plan) -> TreeCosts:
        """A tree for a plan whose blocks do not cross."""
        used = {launch.gpus for launch in plan.launches}
        return self.with_blocks(sorted(used, key=lambda block: (-len(block), block)))

    def of_all_kinds(self) -> list[TreeCosts]:
        """Trees of the useful ladders, and of threes within powers of two; each tree once.

        In small worlds, where one block more or less matters most, then all that there are, if
        they are few.
        """
        problem = self._variants.problem
        num_gpus = problem.num_gpus
        orders: list[Sequence[Block]] = [
            [block for degree in ladder[::-1] for block in blocks(num_gpus, degree)]
            for ladder in self.ladders
        ]
        for degree in self._useful:
            if degree % 3 == 0 and degree < num_gpus:
                above = [d for d in self._useful if d > degree and d & (d - 1) == 0]
                orders.append([block for d in [*above[::-1], degree] for block in self._blocks[d]])
        if num_gpus <= MOST_GPUS:
            orders += laminar_families(problem.blocks, MOST_FAMILIES)
        if problem.has_blocks_from_both_ends:
            orders += self._parted()
        made = [self.with_blocks(order) for order in orders]
        return list({id(costs): costs for costs in made}.values())

    def _parted(self) -> list[Sequence[Block]]:
        """Orders in which one block at an end comes first, then what fills the rest from the other.

        20 = 12 + 8 = 8 + 6 + 6.
        """
        num_gpus, orders = self._variants.problem.num_gpus, list[Sequence[Block]]()
        for degree in self._useful:
            first, last = blocks(num_gpus, degree)[0], blocks_from_last(num_gpus, degree)[-1]
            for end, filling in ((first, blocks_from_last), (last, blocks)):
                orders.append([end, *(b for d in self._useful[::-1] for b in filling(num_gpus, d))])
        return orders

    @property
    def _has_all(self) -> bool:
        """Whether no two blocks cross, so that there is one tree."""
        return any(len(blocks) - 1 == self._num_blocks for blocks in self._known)

    @cached_property
    def ladders(self) -> tuple[tuple[int, ...], ...]:
        """Ladders of the degrees that are the fastest of all smaller ones for some shape."""
        return ladders(self._variants.problem.num_gpus, self._useful)

    @cached_property
    def _useful(self) -> tuple[int, ...]:
        variants = self._variants
        found: set[int] = set()
        for shape in range(variants.num_shapes):
            for size in {1, variants.most_clips(shape)}:
                least_s = inf
                for degree in variants.problem.degrees:
                    seconds = variants.fastest_s((shape, size), degree)
                    if seconds < least_s:
                        least_s = seconds
                        found.add(degree)
        return tuple(sorted(found))
