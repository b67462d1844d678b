"""A tree cut into regions, so that a search step costs the same on 16 and on 1,024 GPUs."""

from dataclasses import dataclass

from arachne.planner.block_tree import ROOT, BlockTree, TreeLoads

_MOST_GPUS = 16
"""GPUs of a region: subtrees of at most so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regions:
    """The largest subtrees of few GPUs, and the trunk of blocks above them.

    Attributes:
        nodes: Nodes of each region, a parent before its children; the first is the region's top.
        trunk: Nodes above all regions, the root left out.
        region_of: Region of each node; −1 on the trunk.
        sizes: GPUs of each node.
    """

    nodes: tuple[tuple[int, ...], ...]
    trunk: tuple[int, ...]
    region_of: tuple[int, ...]
    sizes: tuple[int, ...]


def regions_of(tree: BlockTree) -> Regions:
    """Cut a tree into its largest subtrees of at most 16 GPUs (a single leaf may have more)."""
    region_of = [-1] * tree.num_nodes
    nodes: list[list[int]] = []
    trunk: list[int] = []
    for node in range(1, tree.num_nodes):
        parent = tree.parents[node]
        if region_of[parent] >= 0:
            region_of[node] = region_of[parent]
            nodes[region_of[node]].append(node)
        elif len(tree.gpus[node]) <= _MOST_GPUS or not tree.children[node]:
            region_of[node] = len(nodes)
            nodes.append([node])
        else:
            trunk.append(node)
    return Regions(
        nodes=tuple(map(tuple, nodes)),
        trunk=tuple(trunk),
        region_of=tuple(region_of),
        sizes=tuple(map(len, tree.gpus)),
    )


def begins_s(loads: TreeLoads, top: int) -> float:
    """When a region's top may start: after all work on the blocks around it."""
    parents, work_s = loads.tree.parents, loads.work_s
    begins = 0.0
    node = parents[top]
    while node != ROOT:
        begins += work_s[node]
        node = parents[node]
    return begins
