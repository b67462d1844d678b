"""Which variant runs on which block of a tree: the state that the search changes."""

from collections.abc import Iterable
from math import inf

from arachne.planner.block_tree import BlockTree, TreeLoads
from arachne.planner.problem import PlanningProblem
from arachne.planner.schedule import Placement
from arachne.planner.stacking import cascade_of
from arachne.planner.variants import Variant, Variants

Placed = tuple[Variant, int]
"""A variant and the node it runs on."""


class Assignment:
    """Items (variants on nodes) and the loads they make; clips of a shape are interchangeable."""

    def __init__(self, variants: Variants, tree: BlockTree, items: Iterable[Placed] = ()) -> None:
        self.variants = variants
        self.tree = tree
        self.loads = TreeLoads(tree)
        self.items: list[list[Variant]] = [[] for _ in tree.gpus]
        self._durations_s: dict[Variant, list[float]] = {}
        self._areas: dict[Variant, list[float]] = {}
        for variant, node in items:
            self.add(variant, node)

    @property
    def makespan_s(self) -> float:
        """Load of the most loaded GPU."""
        return self.loads.makespan_s

    def durations_s(self, variant: Variant) -> list[float]:
        """Seconds of a variant on each node; infinite where it cannot run."""
        known_s = self._durations_s.get(variant)
        if known_s is None:
            gpus = self.tree.gpus
            known_s = [inf] + [self.variants.duration_s(variant, block) for block in gpus[1:]]
            self._durations_s[variant] = known_s
            self._areas[variant] = [
                len(block) * seconds for block, seconds in zip(gpus, known_s, strict=True)
            ]
        return known_s

    def fits_somewhere(self, variant: Variant) -> bool:
        """Whether any block of this tree can run the variant."""
        return min(self.durations_s(variant)) < inf

    def add(self, variant: Variant, node: int) -> None:
        """Put one more item on a node."""
        self.items[node].append(variant)
        self.loads.add(node, self.durations_s(variant)[node])

    def remove(self, variant: Variant, node: int) -> None:
        """Take one item of this variant off a node."""
        self.items[node].remove(variant)
        self.loads.add(node, -self.durations_s(variant)[node])

    def best_node(self, variant: Variant, target_s: float) -> int:
        """Where the variant costs least GPU time and no load passes `target_s`.

        If every load would, the node with the lowest load afterwards. Ties go to the lower load,
        then to the larger block further left.
        """
        durations_s = self.durations_s(variant)
        areas = self._areas[variant]
        best_node, best_area, best_peak_s = 0, inf, inf
        lowest_node, lowest_peak_s = 0, inf
        for node, peak_s in enumerate(self.loads.peaks_s()):
            peak_s += durations_s[node]
            if peak_s < lowest_peak_s:
                lowest_node, lowest_peak_s = node, peak_s
            if peak_s <= target_s:
                area = areas[node]
                if area < best_area or (area == best_area and peak_s < best_peak_s):
                    best_node, best_area, best_peak_s = node, area, peak_s
        return best_node or lowest_node

    def placed(self) -> list[Placed]:
        """All items, node by node."""
        return [(variant, node) for node, items in enumerate(self.items) for variant in items]

    def placements(self, problem: PlanningProblem) -> list[Placement]:
        """Cascades on GPUs in launch order: by block from the largest, long ones first.

        Clips of a shape are dealt out in slot order.
        """
        next_of_shape = [0] * len(self.variants.slots_of_shape)
        found: list[Placement] = []
        for node, items in enumerate(self.items):
            durations_s = {variant: self.durations_s(variant)[node] for variant in items}
            for variant in sorted(items, key=lambda v: (-durations_s[v], v)):
                shape, num_clips = variant
                first = next_of_shape[shape]
                next_of_shape[shape] = first + num_clips
                slots = self.variants.slots_of_shape[shape][first : first + num_clips]
                found.append((cascade_of(problem.batch.clips, slots), self.tree.gpus[node]))
        return found
