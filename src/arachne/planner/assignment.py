"""How many clips of each shape run on each block of a tree: the state that the search changes."""

from collections.abc import Sequence
from math import inf

from arachne.planner.best_stacks import BestStacks
from arachne.planner.block_tree import ROOT, BlockTree, TreeLoads
from arachne.planner.problem import Placement
from arachne.planner.variants import Kind, Variants

Move = tuple[int, int, int]
"""Shape, clips put on a node (negative: taken off), node."""


class TreeCosts:
    """What clips cost on the nodes of a tree; shared by all assignments on it.

    Attributes:
        seconds: Of each node and shape, the seconds of 0, 1, … clips there (`BestStacks`), filled
            as far as `reach` was asked.
        sizes: GPUs of each node.
        least_area_s: Least GPU time of one clip of each shape.
    """

    def __init__(self, variants: Variants, tree: BlockTree) -> None:
        self.variants = variants
        self.tree = tree
        self.sizes = [len(gpus) for gpus in tree.gpus]
        self.seconds: list[list[list[float]]] = [[]]
        self._stacks: list[list[BestStacks]] = [[] for _ in range(variants.num_shapes)]
        self._reached = [-1] * variants.num_shapes
        of_kind: dict[Kind, list[list[float]]] = {}
        for gpus in tree.gpus[1:]:
            kind = variants.kind(gpus)
            if kind not in of_kind:
                stacks = [variants.stacks(shape, gpus) for shape in range(variants.num_shapes)]
                of_kind[kind] = [best.seconds for best in stacks]
                for shape, best in enumerate(stacks):
                    self._stacks[shape].append(best)
            self.seconds.append(of_kind[kind])
        for shape in range(variants.num_shapes):
            self.reach(shape, 1)
        self.least_area_s = [
            min(
                [
                    size * s[shape][1]
                    for size, s in zip(self.sizes[1:], self.seconds[1:], strict=True)
                ]
            )
            for shape in range(variants.num_shapes)
        ]

    def reach(self, shape: int, num_clips: int) -> None:
        """Fill `seconds` of a shape up to `num_clips` clips on every node."""
        if num_clips > self._reached[shape]:
            self._reached[shape] = num_clips
            for stacks in self._stacks[shape]:
                stacks.extend(num_clips)


class Assignment:
    """Clips on nodes and the loads they make; clips of a shape are interchangeable.

    Attributes:
        costs: What clips cost on the nodes.
        loads: Seconds of work on each node.
        counts: Of each node, the clips of each shape on it; changed by `add` only.
        present: Of each node, the shapes of which a search may take clips off.
        most_on_a_node: Of each shape, the most clips that a node has had so far.
    """

    def __init__(self, costs: TreeCosts) -> None:
        num_shapes = costs.variants.num_shapes
        self.costs = costs
        self.loads = TreeLoads(costs.tree)
        self.counts = [[0] * num_shapes for _ in costs.sizes]
        self.present: list[list[int]] = [[] for _ in costs.sizes]
        self.most_on_a_node = [0] * num_shapes
        self._until_s = [0.0] * costs.tree.num_nodes

    @property
    def makespan_s(self) -> float:
        """Load of the most loaded GPU."""
        return self.loads.makespan_s

    @property
    def contents(self) -> tuple[object, ...]:
        """What each block holds that is used: equal on other trees if the clips lie as they do."""
        gpus = self.costs.tree.gpus
        return tuple((gpus[n], tuple(of)) for n, of in enumerate(self.counts) if any(of))

    def add(self, shape: int, num_clips: int, node: int) -> None:
        """Put clips of a shape on a node, or take them off if `num_clips` is negative."""
        before = self.counts[node][shape]
        after = before + num_clips
        if after > self.most_on_a_node[shape]:
            self.most_on_a_node[shape] = after
            self.costs.reach(shape, after)
        seconds = self.costs.seconds[node][shape]
        self.counts[node][shape] = after
        if not before:
            self.present[node].append(shape)
        elif not after:
            self.present[node].remove(shape)
        self.loads.add(node, seconds[after] - seconds[before])

    def settle(self) -> None:
        """Leave all clips where they are: only shapes that are added from now on may be moved."""
        self.present = [[] for _ in self.counts]

    def release(self) -> None:
        """Let all clips be moved."""
        self.present = [[shape for shape, n in enumerate(of) if n] for of in self.counts]

    def undo(self, moves: Sequence[Move]) -> None:
        """Take moves back, the last first; `moves` is not changed."""
        for shape, num_clips, node in reversed(moves):
            self.add(shape, -num_clips, node)

    def best_node(
        self, shape: int, num_clips: int, nodes: Sequence[int], target_s: float, *, is_tight: bool
    ) -> int:
        """Where the clips add least GPU time and no load passes `target_s`.

        If every load would, the node with the lowest load afterwards; the root if the clips fit on
        no node. Ties go to the higher load
        if `is_tight`, else to the lower one, then to the first node. `nodes` are looked at in
        order, and hold the parents of each before it.
        """
        loads, costs = self.loads, self.costs
        work_s, below_s, parents = loads.work_s, loads.below_s, costs.tree.parents
        counts, seconds, sizes = self.counts, costs.seconds, costs.sizes
        until_s = self._until_s
        sign = -1.0 if is_tight else 1.0
        best_node, best_area, best_tie = ROOT, inf, inf
        lowest_node, lowest_peak_s = ROOT, inf
        costs.reach(shape, self.most_on_a_node[shape] + num_clips)
        for node in nodes:
            until_s[node] = until = until_s[parents[node]] + work_s[node]
            known_s = seconds[node][shape]
            count = counts[node][shape]
            added_s = known_s[count + num_clips] - known_s[count]
            peak_s = until + below_s[node] + added_s
            if peak_s < lowest_peak_s:
                lowest_node, lowest_peak_s = node, peak_s
            if peak_s <= target_s:
                area = sizes[node] * added_s
                if area <= best_area:
                    tie = sign * peak_s
                    if area < best_area or tie < best_tie:
                        best_node, best_area, best_tie = node, area, tie
        return best_node or lowest_node

    def can_add(self, shape: int, num_clips: int, node: int) -> bool:
        """Whether the node can hold so many more clips of a shape."""
        count = self.counts[node][shape] + num_clips
        self.costs.reach(shape, count)
        return self.costs.seconds[node][shape][count] < inf

    def fill(self, left: Sequence[int], target_s: float) -> bool:
        """Add clips of each shape one by one, costly shapes first, where they cost least.

        False, with some clips left out, if one fits on no node.
        """
        nodes = range(1, self.costs.tree.num_nodes)
        area_s = self.costs.least_area_s
        for shape in sorted(range(len(left)), key=lambda shape: (-area_s[shape], shape)):
            for _ in range(left[shape]):
                node = self.best_node(shape, 1, nodes, target_s, is_tight=True)
                if node == ROOT:
                    return False
                self.add(shape, 1, node)
        return True

    def placements(self) -> list[Placement]:
        """Cascades on GPUs in launch order: by block from the largest, long ones first.

        Clips of a shape are dealt out in slot order.
        """
        variants, tree = self.costs.variants, self.costs.tree
        next_of_shape = [0] * variants.num_shapes
        found: list[Placement] = []
        for gpus, of_node in zip(tree.gpus, self.counts, strict=True):
            stacks = [
                (shape, size)
                for shape, num_clips in enumerate(of_node)
                if num_clips
                for size in variants.stacks(shape, gpus).sizes(num_clips)
            ]
            durations_s = {variant: variants.duration_s(variant, gpus) for variant in stacks}
            for shape, num_clips in sorted(stacks, key=lambda v: (-durations_s[v], v)):
                first = next_of_shape[shape]
                next_of_shape[shape] = first + num_clips
                slots = variants.slots_of_shape[shape][first : first + num_clips]
                found.append((variants.cascade(shape, slots), gpus))
        return found
