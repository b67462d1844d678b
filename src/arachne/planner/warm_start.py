"""Assignments to start the search from: built for a target time, or taken from another plan."""

from math import inf

from arachne.core.plan import Plan
from arachne.planner.assignment import Assignment
from arachne.planner.block_tree import BlockTree
from arachne.planner.variants import Variant, Variants

_TARGETS = (1.0, 1.01, 1.03, 1.06, 1.1, 1.2, 1.4)
"""Multiples of the lower bound that a start aims at: tight ones split more, loose ones less."""


def from_plan(variants: Variants, tree: BlockTree, plan: Plan) -> Assignment | None:
    """A plan as an assignment on this tree; None if it uses blocks that the tree has not."""
    node_of_block = {gpus: node for node, gpus in enumerate(tree.gpus) if gpus}
    assignment = Assignment(variants, tree)
    for launch in plan.launches:
        node = node_of_block.get(launch.gpus)
        if node is None:
            return None
        shape = variants.shape_of_bucket[launch.cascade.bucket]
        assignment.add((shape, launch.cascade.num_clips), node)
    return assignment


def constructed(variants: Variants, tree: BlockTree, bound_s: float) -> Assignment | None:
    """The best of several greedy assignments; None if some clip fits on no block of the tree."""
    empty = Assignment(variants, tree)
    best: Assignment | None = None
    for items in (_stacked(variants, empty), _single(variants)):
        if not all(empty.fits_somewhere(variant) for variant in items):
            continue
        order = sorted(items, key=lambda variant: (-_least_area(empty, variant), variant))
        for target in _TARGETS:
            made = Assignment(variants, tree)
            for variant in order:
                made.add(variant, made.best_node(variant, target * bound_s))
            if best is None or made.makespan_s < best.makespan_s:
                best = made
            if made.makespan_s <= target * bound_s:
                break
    return best


def _least_area(assignment: Assignment, variant: Variant) -> float:
    durations_s = assignment.durations_s(variant)
    gpus = assignment.tree.gpus
    return min(len(gpus[node]) * s for node, s in enumerate(durations_s) if s < inf)


def _stacked(variants: Variants, assignment: Assignment) -> list[Variant]:
    """Every shape in stacks as large as the rule and the memory allow."""
    items: list[Variant] = []
    for shape, slots in enumerate(variants.slots_of_shape):
        size = variants.most_clips(shape)
        while size > 1 and not assignment.fits_somewhere((shape, size)):
            size -= 1
        whole, rest = divmod(len(slots), size)
        items += [(shape, size)] * whole
        items += [(shape, rest)] if rest else []
    return items


def _single(variants: Variants) -> list[Variant]:
    return [(shape, 1) for shape, slots in enumerate(variants.slots_of_shape) for _ in slots]
