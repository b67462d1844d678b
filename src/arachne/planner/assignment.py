"""How many clips of each shape run on each block of a tree: the state that the search changes."""

from arachne.planner.block_tree import BlockTree, TreeLoads
from arachne.planner.problem import PlanningProblem
from arachne.planner.schedule import Placement
from arachne.planner.stacking import cascade_of
from arachne.planner.variants import Variants

Counts = list[list[int]]
"""Of each node, the clips of each shape on it."""


class Assignment:
    """Clips on nodes and the loads they make; clips of a shape are interchangeable.

    Attributes:
        counts: Of each node, the clips of each shape on it; changed by `add` only.
        seconds: Of each node and shape, the seconds of 0, 1, … clips there (`BestStacks`), filled
            as far as `reach` was asked.
        present: Of each node, the shapes that it has clips of.
        most_on_a_node: Of each shape, the most clips that a node has had so far.
    """

    def __init__(self, variants: Variants, tree: BlockTree) -> None:
        self.variants = variants
        self.tree = tree
        self.loads = TreeLoads(tree)
        shapes = range(variants.num_shapes)
        self.counts: Counts = [[0] * variants.num_shapes for _ in tree.gpus]
        self.present: list[list[int]] = [[] for _ in tree.gpus]
        stacks = [[variants.stacks(shape, gpus) for shape in shapes] for gpus in tree.gpus[1:]]
        self.seconds = [[], *([best.seconds for best in of_node] for of_node in stacks)]
        self._stacks = [
            list({id(of_node[shape]): of_node[shape] for of_node in stacks}.values())
            for shape in shapes
        ]
        self.most_on_a_node = [0] * variants.num_shapes
        self._reached = [0] * variants.num_shapes

    @property
    def makespan_s(self) -> float:
        """Load of the most loaded GPU."""
        return self.loads.makespan_s

    def reach(self, shape: int, num_clips: int) -> None:
        """Fill `seconds` of a shape up to `num_clips` clips on every node."""
        if num_clips > self._reached[shape]:
            self._reached[shape] = num_clips
            for stacks in self._stacks[shape]:
                stacks.extend(num_clips)

    def add(self, shape: int, num_clips: int, node: int) -> None:
        """Put clips of a shape on a node, or take them off if `num_clips` is negative."""
        before = self.counts[node][shape]
        after = before + num_clips
        if after > self.most_on_a_node[shape]:
            self.most_on_a_node[shape] = after
            self.reach(shape, after)
        seconds = self.seconds[node][shape]
        self.counts[node][shape] = after
        if not before:
            self.present[node].append(shape)
        elif not after:
            self.present[node].remove(shape)
        self.loads.add(node, seconds[after] - seconds[before])

    def snapshot(self) -> Counts:
        """A copy of the counts."""
        return [list(counts) for counts in self.counts]


def placements(
    problem: PlanningProblem, variants: Variants, tree: BlockTree, counts: Counts
) -> list[Placement]:
    """Cascades on GPUs in launch order: by block from the largest, long ones first.

    Clips of a shape are dealt out in slot order.
    """
    next_of_shape = [0] * variants.num_shapes
    found: list[Placement] = []
    for gpus, of_node in zip(tree.gpus, counts, strict=True):
        stacks = [
            (shape, size)
            for shape, num_clips in enumerate(of_node)
            if num_clips
            for size in variants.stacks(shape, gpus).sizes(num_clips)
        ]
        durations_s = {variant: variants.duration_s(variant, gpus) for variant in stacks}
        for variant in sorted(stacks, key=lambda v: (-durations_s[v], v)):
            shape, num_clips = variant
            first = next_of_shape[shape]
            next_of_shape[shape] = first + num_clips
            slots = variants.slots_of_shape[shape][first : first + num_clips]
            found.append((cascade_of(problem.batch.clips, slots), gpus))
    return found
