"""The blocks of one laminar family as a tree, and the loads of an assignment on it.

Every GPU runs its cascades from the largest block to the smallest. Blocks are nested or disjoint,
so all members of a block become free at the same moment and nothing ever waits: a GPU's load is the
sum of the work on the path from the root to its leaf, and planning is balancing the leaves.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from arachne.core.blocks import (
    Block,
    aligned_blocks,
    blocks,
    has_blocks_from_both_ends,
    laminar,
    plan_blocks,
)

ROOT = 0
"""Node 0 stands above all blocks, with no GPUs and no work, so that the forest is a tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTree:
    """Nodes are blocks, largest degree first, so that a parent comes before its children.

    Attributes:
        gpus: The block of each node, by first GPU within a degree; empty for the root.
        parents: Parent of each node; the root is its own.
        children: Children of each node.
    """

    gpus: tuple[Block, ...]
    parents: tuple[int, ...]
    children: tuple[tuple[int, ...], ...]

    @property
    def num_nodes(self) -> int:
        """Blocks, and the root."""
        return len(self.gpus)


def block_tree(num_gpus: int, ladder: Sequence[int]) -> BlockTree:
    """The tree of all blocks of a ladder of degrees."""
    return tree_of(num_gpus, [block for degree in ladder for block in blocks(num_gpus, degree)])


def widest_tree(
    num_gpus: int,
    degrees: Sequence[int],
    preferred: Iterable[Block] = (),
    *,
    from_both_ends: bool = True,
) -> BlockTree:
    """A tree that no block of these degrees can be added to.

    `preferred` blocks come first, then those that are aligned, then others if there are some
    `from_both_ends`; large ones before small ones: left-over GPUs get smaller blocks, and ladders
    mix where they do not cross.
    """
    kinds = [aligned_blocks(num_gpus, degrees)]
    if from_both_ends and has_blocks_from_both_ends(num_gpus, degrees):
        kinds.append(plan_blocks(num_gpus, degrees))
    candidates = [
        block for of_kind in kinds for degree in reversed(degrees) for block in of_kind[degree]
    ]
    return tree_of(num_gpus, laminar(num_gpus, [*preferred, *candidates]))


def tree_of(num_gpus: int, family: Iterable[Block]) -> BlockTree:
    """The tree of a laminar family."""
    gpus: list[Block] = [()]
    parents = [ROOT]
    smallest_over = [ROOT] * num_gpus
    for block in sorted(family, key=lambda block: (-len(block), block)):
        parents.append(smallest_over[block[0]])
        for gpu in block:
            smallest_over[gpu] = len(gpus)
        gpus.append(block)
    children: list[list[int]] = [[] for _ in gpus]
    for node, parent in enumerate(parents):
        if node != ROOT:
            children[parent].append(node)
    return BlockTree(gpus=tuple(gpus), parents=tuple(parents), children=tuple(map(tuple, children)))


class TreeLoads:
    """Seconds of work on each block, and what follows from them; changed in place.

    Attributes:
        tree: The blocks.
        work_s: Work assigned to each block itself.
        below_s: Of each node, the largest load that waits in its subtree after its own work.
    """

    def __init__(self, tree: BlockTree) -> None:
        self.tree = tree
        self.work_s = [0.0] * tree.num_nodes
        self.below_s = [0.0] * tree.num_nodes

    @property
    def makespan_s(self) -> float:
        """Load of the most loaded GPU."""
        return self.below_s[ROOT]

    def add(self, node: int, seconds: float) -> None:
        """Add work (or remove it, if negative) and update the loads above."""
        work_s, below_s, children = self.work_s, self.below_s, self.tree.children
        work_s[node] += seconds
        while node != ROOT:
            parent = self.tree.parents[node]
            largest_s = max([work_s[child] + below_s[child] for child in children[parent]])
            if largest_s == below_s[parent]:
                return
            below_s[parent] = largest_s
            node = parent

    def peaks_s(self) -> list[float]:
        """Of each node, the load of the most loaded GPU beneath it."""
        work_s, below_s, parents = self.work_s, self.below_s, self.tree.parents
        until_s = [0.0] * len(work_s)
        peaks_s = [below_s[ROOT]] * len(work_s)
        for node in range(1, len(work_s)):
            until_s[node] = ended_s = until_s[parents[node]] + work_s[node]
            peaks_s[node] = ended_s + below_s[node]
        return peaks_s

    def critical_path(self) -> list[int]:
        """Blocks from the root to the most loaded leaf; ties to the first block."""
        work_s, below_s, children = self.work_s, self.below_s, self.tree.children
        path: list[int] = []
        node = ROOT
        while children[node]:
            node = max(children[node], key=lambda child: work_s[child] + below_s[child])
            path.append(node)
        return path
