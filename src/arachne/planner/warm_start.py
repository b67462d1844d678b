"""Assignments to start the search from: built for a target time, or taken from another plan."""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf

from arachne.core.plan import Plan
from arachne.planner.assignment import Assignment, TreeCosts
from arachne.planner.block_tree import BlockTree
from arachne.planner.variants import Gpus, Variants

_LONGEST_CLIPS = (1.1, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.12, 0.07)
"""Parts of the lower bound that a clip may last: short ones split more."""

_LONGEST_STACKS = (0.05, 0.1, 0.25, 1.0)
"""Parts of the lower bound that a stack may last: long ones save launches, short ones balance."""

_Chunk = tuple[float, int, int]
"""Seconds, shape and number of clips that are placed together."""


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to train the clips of a shape: its degree, and how long its stacks take there."""

    degree: int
    durations_s: tuple[float, ...]
    area_s: float

    @property
    def single_s(self) -> float:
        return self.durations_s[0]

    def largest_within(self, limit_s: float) -> int:
        """Clips of the largest stack no longer than the limit; one if there is none."""
        fitting = [k for k, s in enumerate(self.durations_s, start=1) if s <= limit_s]
        return fitting[-1] if fitting else 1


def from_plan(costs: TreeCosts, plan: Plan) -> Assignment | None:
    """A plan as an assignment on this tree; None if it uses blocks that the tree has not."""
    node_of_block = {gpus: node for node, gpus in enumerate(costs.tree.gpus) if gpus}
    assignment = Assignment(costs)
    for launch in plan.launches:
        node = node_of_block.get(launch.gpus)
        if node is None:
            return None
        shape = costs.variants.shape_of(launch.cascade)
        assignment.add(shape, launch.cascade.num_clips, node)
    return assignment


def constructed(costs: TreeCosts, bound_s: float, most: int) -> list[Assignment]:
    """The best greedy assignments, shortest first, with different degrees of the shapes.

    At most `most`; none if some clip fits on no block of the tree.
    """
    variants = costs.variants
    ways = [_ways(variants, costs.tree, shape) for shape in range(variants.num_shapes)]
    if not all(ways):
        return []
    best: dict[tuple[int, ...], Assignment] = {}
    for clip_part in _LONGEST_CLIPS:
        chosen = [_cheapest_within(of_shape, clip_part * bound_s) for of_shape in ways]
        degrees = tuple(way.degree for way in chosen)
        if degrees in best:
            continue
        stackings = {
            tuple(way.largest_within(stack_part * bound_s) for way in chosen): None
            for stack_part in _LONGEST_STACKS
        }
        made = [_balanced(costs, chosen, sizes) for sizes in stackings]
        found = [assignment for assignment in made if assignment is not None]
        if found:
            best[degrees] = min(found, key=lambda assignment: assignment.makespan_s)
    return sorted(best.values(), key=lambda assignment: assignment.makespan_s)[:most]


def _ways(variants: Variants, tree: BlockTree, shape: int) -> list[_Way]:
    """Every degree that can run the shape, at its fastest kind of block."""
    firsts: dict[int, dict[object, Gpus]] = {}
    for gpus in tree.gpus[1:]:
        firsts.setdefault(len(gpus), {}).setdefault(variants.kind(gpus), gpus)
    found: list[_Way] = []
    for degree, kinds in firsts.items():
        fastest = min(kinds.values(), key=lambda gpus: variants.duration_s((shape, 1), gpus))
        durations_s = [
            variants.duration_s((shape, k), fastest)
            for k in range(1, variants.most_clips(shape) + 1)
        ]
        fitting = [s for s in durations_s if s < inf]
        if fitting:
            area_s = degree * min(s / k for k, s in enumerate(durations_s, start=1))
            found.append(_Way(degree, tuple(durations_s), area_s))
    return found


def _cheapest_within(ways: list[_Way], limit_s: float) -> _Way:
    """Least GPU time among ways whose single clip keeps the limit; the fastest if none does."""
    within = [way for way in ways if way.single_s <= limit_s]
    if within:
        return min(within, key=lambda way: (way.area_s, way.degree))
    return min(ways, key=lambda way: (way.single_s, way.degree))


def _balanced(costs: TreeCosts, ways: list[_Way], sizes: tuple[int, ...]) -> Assignment | None:
    """Degree by degree from the largest, long stacks first, each to the first block that is free.

    None if a stack fits on no block of its degree.
    """
    variants, tree = costs.variants, costs.tree
    chunks: dict[int, list[_Chunk]] = {}
    for shape, (way, size) in enumerate(zip(ways, sizes, strict=True)):
        for num_clips in _cut(len(variants.slots_of_shape[shape]), size):
            seconds = way.durations_s[num_clips - 1]
            chunks.setdefault(way.degree, []).append((seconds, shape, num_clips))
    made = Assignment(costs)
    until_s = [0.0] * tree.num_nodes
    for level in _levels(tree):
        for node in level:
            until_s[node] = until_s[tree.parents[node]]
        of_level = sorted(chunks.get(len(tree.gpus[level[0]]), ()), key=lambda c: (-c[0], c[1]))
        if of_level and not _fill(made, level, until_s, of_level):
            return None
    return made


def _fill(made: Assignment, level: list[int], until_s: list[float], chunks: list[_Chunk]) -> bool:
    """Longest processing time first (Graham, 1969) on one level; False if a chunk fits nowhere."""
    heap = [(until_s[node], node) for node in level]
    heapify(heap)
    for _, shape, num_clips in chunks:
        passed: list[tuple[float, int]] = []
        while heap:
            free_s, node = heappop(heap)
            count = made.counts[node][shape]
            made.costs.reach(shape, count + num_clips)
            seconds = made.costs.seconds[node][shape]
            added_s = seconds[count + num_clips] - seconds[count]
            if added_s < inf:
                made.add(shape, num_clips, node)
                until_s[node] = free_s + added_s
                heappush(heap, (until_s[node], node))
                break
            passed.append((free_s, node))
        else:
            return False
        for entry in passed:
            heappush(heap, entry)
    return True


def _levels(tree: BlockTree) -> Iterator[list[int]]:
    """Nodes of each degree, the largest degree first."""
    level: list[int] = []
    for node in range(1, tree.num_nodes):
        if level and len(tree.gpus[node]) != len(tree.gpus[level[0]]):
            yield level
            level = []
        level.append(node)
    yield level


def _cut(num_clips: int, size: int) -> list[int]:
    """Stacks of `size` clips, and the rest."""
    whole, rest = divmod(num_clips, size)
    return [size] * whole + ([rest] if rest else [])
