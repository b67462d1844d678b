"""Local search on a block tree: take a few clips off, put them back where they cost least.

Each step takes clips off the most loaded path and off some other blocks of one or two regions, and
puts them back, the longest first, on the blocks of those regions. What a clip costs on a block is
what it adds to the block's best stacks, so stacks grow, shrink and split by themselves. Small
setbacks are accepted early on (threshold accepting, Dueck and Scheuer, 1990); the best assignment
seen is kept.
"""

from math import inf
from random import Random

from arachne.planner.assignment import Assignment, Counts
from arachne.planner.regions import Regions, begins_s, regions_of

_MOST_REMOVED = 5
_FIRST_SETBACK = 0.02
"""Relative setback accepted at the first step; it falls linearly to none."""

_Move = tuple[int, int, int]
"""Shape, number of clips, node."""


def improved(start: Assignment, bound_s: float, iterations: int, rng: Random) -> Counts:
    """Counts of the best assignment found in `iterations` steps; `start` is used up."""
    search = _Search(start, rng)
    best, best_s = start.snapshot(), start.makespan_s
    for iteration in range(iterations):
        if best_s <= bound_s * (1.0 + 1e-7):
            break
        before_s = start.makespan_s
        moves = search.step(best_s * (1.0 - 0.01 * rng.random()))
        now_s = start.makespan_s
        setback = _FIRST_SETBACK * (1.0 - iteration / iterations)
        if now_s > before_s and now_s > best_s * (1.0 + setback):
            for shape, num_clips, node in reversed(moves):
                start.add(shape, -num_clips, node)
        elif now_s < best_s * (1.0 - 1e-9):
            best, best_s = start.snapshot(), now_s
    return best


class _Search:
    """One step at a time on an assignment that it changes in place."""

    def __init__(self, current: Assignment, rng: Random) -> None:
        num_shapes = current.variants.num_shapes
        self._current = current
        self._rng = rng
        self._regions: Regions = regions_of(current.tree)
        self._until_s = [0.0] * current.tree.num_nodes
        self._area_s = [_least_area_s(current, shape) for shape in range(num_shapes)]

    def step(self, target_s: float) -> list[_Move]:
        """Take clips off and put them back; gives all moves, those off with negative counts."""
        current, rng = self._current, self._rng
        path = current.loads.critical_path()
        regions = self._touched(path[-1])
        moves: list[_Move] = []
        self._take_off(self._on_path(path), moves)
        for _ in range(int(rng.random() * _MOST_REMOVED)):
            node = self._some_node(regions)
            if node is not None:
                shapes = current.present[node]
                self._take_off((shapes[int(rng.random() * len(shapes))], node), moves)
        for shape, num_clips in self._chunks(moves):
            node = self._best_node(shape, num_clips, regions, target_s)
            current.add(shape, num_clips, node)
            moves.append((shape, num_clips, node))
        return moves

    def _touched(self, leaf: int) -> list[int]:
        """The region of the most loaded leaf, and often another one."""
        region = self._regions.region_of[leaf]
        num_regions = len(self._regions.nodes)
        if num_regions == 1:
            return [region]
        other = int(self._rng.random() * (num_regions - 1))
        return [region, other + (other >= region)]

    def _on_path(self, path: list[int]) -> tuple[int, int]:
        present = self._current.present
        found = [(shape, node) for node in path for shape in present[node]]
        return found[int(self._rng.random() * len(found))]

    def _some_node(self, regions: list[int]) -> int | None:
        """A random node with clips on it; None if a few tries found none."""
        rng = self._rng
        for _ in range(8):
            nodes = self._regions.nodes[regions[int(rng.random() * len(regions))]]
            node = nodes[int(rng.random() * len(nodes))]
            if self._current.present[node]:
                return node
        return None

    def _take_off(self, entry: tuple[int, int], moves: list[_Move]) -> None:
        shape, node = entry
        count = self._current.counts[node][shape]
        chance = self._rng.random()
        if chance < 0.4:
            count = 1
        elif chance < 0.7:
            count = 1 + int(self._rng.random() * count)
        self._current.add(shape, -count, node)
        moves.append((shape, -count, node))

    def _chunks(self, moves: list[_Move]) -> list[tuple[int, int]]:
        """What was taken off, as it is put back: whole, in two parts, or clip by clip."""
        rng = self._rng
        chunks: list[tuple[int, int]] = []
        for shape, taken, _ in moves:
            count = -taken
            chance = rng.random()
            if count > 1 and chance < 0.3:
                part = 1 + int(rng.random() * (count - 1))
                chunks += [(shape, part), (shape, count - part)]
            elif 1 < count <= 6 and chance < 0.5:
                chunks += [(shape, 1)] * count
            else:
                chunks.append((shape, count))
        if rng.random() < 0.8:
            chunks.sort(key=self._weight, reverse=True)
        return chunks

    def _weight(self, chunk: tuple[int, int]) -> float:
        return self._area_s[chunk[0]] * chunk[1]

    def _best_node(
        self, shape: int, num_clips: int, regions: list[int], target_s: float
    ) -> int:
        """Where the clips add least GPU time and no load passes `target_s`.

        If every load would, the node with the lowest load afterwards. Ties go to the lower load,
        then to the first node.
        """
        current = self._current
        loads = current.loads
        work_s, below_s, parents = loads.work_s, loads.below_s, loads.tree.parents
        counts, seconds, sizes = current.counts, current.seconds, self._regions.sizes
        best_node, best_area, best_peak_s = 0, inf, inf
        lowest_node, lowest_peak_s = 0, inf
        current.reach(shape, current.most_on_a_node[shape] + num_clips)
        until_s = self._until_s
        for region in regions:
            nodes = self._regions.nodes[region]
            until_s[parents[nodes[0]]] = begins_s(loads, nodes[0])
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
                    if area < best_area or (area == best_area and peak_s < best_peak_s):
                        best_node, best_area, best_peak_s = node, area, peak_s
        return best_node or lowest_node


def _least_area_s(assignment: Assignment, shape: int) -> float:
    """Least GPU time of one clip of the shape."""
    assignment.reach(shape, 1)
    gpus, seconds = assignment.tree.gpus, assignment.seconds
    return min(len(gpus[n]) * seconds[n][shape][1] for n in range(1, len(gpus)))
