"""The block trees that a problem's plans may lie on; each is made once."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from math import inf

from arachne.core.blocks import Block, blocks, ladders, plan_blocks
from arachne.core.plan import Plan
from arachne.planner.assignment import TreeCosts
from arachne.planner.block_tree import widest_tree
from arachne.planner.variants import Variants


class Trees:
    """Trees with the costs on them."""

    def __init__(self, variants: Variants) -> None:
        self._variants = variants
        self._known: dict[tuple[Block, ...], TreeCosts] = {}
        problem = variants.problem
        self._blocks = plan_blocks(problem.num_gpus, problem.degrees)

    def with_blocks(self, preferred: Iterable[Block]) -> TreeCosts:
        """A tree that has these blocks, as far as they do not cross earlier ones."""
        if self._has_all:
            return next(iter(self._known.values()))
        problem = self._variants.problem
        tree = widest_tree(problem.num_gpus, problem.degrees, preferred)
        known = self._known.get(tree.gpus)
        if known is None:
            known = self._known[tree.gpus] = TreeCosts(self._variants, tree)
        return known

    def with_blocks_of(self, plan: Plan) -> TreeCosts:
        """A tree for a plan whose blocks do not cross."""
        used = {launch.gpus for launch in plan.launches}
        return self.with_blocks(sorted(used, key=lambda block: (-len(block), block)))

    def of_all_kinds(self) -> list[TreeCosts]:
        """Trees of the useful ladders, and of threes within powers of two; each tree once."""
        num_gpus = self._variants.problem.num_gpus
        orders: list[Sequence[Block]] = [
            [block for degree in ladder[::-1] for block in blocks(num_gpus, degree)]
            for ladder in self.ladders
        ]
        for degree in self._useful:
            if degree % 3 == 0 and degree < num_gpus:
                above = [d for d in self._useful if d > degree and d & (d - 1) == 0]
                orders.append([block for d in [*above[::-1], degree] for block in self._blocks[d]])
        made = [self.with_blocks(order) for order in orders]
        return list({id(costs): costs for costs in made}.values())

    @property
    def _has_all(self) -> bool:
        """Whether no two blocks cross, so that there is one tree."""
        num_blocks = sum(map(len, self._blocks.values()))
        return any(len(blocks) - 1 == num_blocks for blocks in self._known)

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
