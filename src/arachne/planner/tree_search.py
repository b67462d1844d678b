"""Local search on a block tree: clear two small blocks, fill them again where clips cost least.

Each step takes clips off a block on the most loaded path, off the blocks around it, and off another
block, and puts them back there, the longest first. What clips cost on a block is what they add to
the block's best stacks, so stacks grow, shrink and split by themselves. Small setbacks are accepted
early on (threshold accepting, Dueck and Scheuer, 1990); the best assignment seen is kept.
"""

from math import inf
from random import Random

from arachne.planner.assignment import Assignment, Move
from arachne.planner.block_tree import ROOT

_ANYWHERE = 0.3
"""Insertions per step and block that do not ask for the best block: matters with few blocks."""

_MOST_CLEARED_GPUS = 16
"""Blocks that a step clears are not larger, so that a step costs the same in any world."""

_FIRST_SETBACK = 0.01
"""Relative setback accepted at the first step; it falls linearly to none."""


def improved(start: Assignment, bound_s: float, iterations: int, rng: Random) -> Assignment:
    """The best assignment found in `iterations` steps; `start` is used up."""
    search = _Search(start, rng)
    best_s = start.makespan_s
    since_best: list[Move] = []
    for iteration in range(iterations):
        if best_s <= bound_s * (1.0 + 1e-7):
            break
        setback = _FIRST_SETBACK * (1.0 - iteration / iterations) * rng.random()
        target_s = best_s - (best_s - bound_s) * 0.5 * rng.random() ** 2
        limit_s = max(start.makespan_s, best_s * (1.0 + setback))
        since_best += search.step(target_s, limit_s)
        if start.makespan_s < best_s * (1.0 - 1e-9):
            best_s = start.makespan_s
            since_best.clear()
    start.undo(since_best)
    return start


class _Search:
    """Steps on an assignment that change it in place."""

    def __init__(self, current: Assignment, rng: Random) -> None:
        tree = current.costs.tree
        self._current = current
        self._rng = rng
        self._sizes = current.costs.sizes
        self._parents = tree.parents
        self._children = tree.children
        self._below = [[node] for node in range(tree.num_nodes)]
        for node in range(tree.num_nodes - 1, ROOT, -1):
            self._below[tree.parents[node]] += self._below[node]
        self._area_s = current.costs.least_area_s
        self._alike: dict[int, list[int]] = {}
        for node in range(1, tree.num_nodes):
            self._alike.setdefault(self._sizes[node], []).append(node)
        self._small = [n for n in range(1, tree.num_nodes) if self._can_clear(n)]

    def step(self, target_s: float, limit_s: float) -> list[Move]:
        """Clear and fill again, aiming at `target_s`; gives what was moved.

        Undone, and nothing moved, if a load would pass `limit_s`.
        """
        current, rng = self._current, self._rng
        path = current.loads.critical_path()
        cleared = self._cleared(path)
        around = self._around(cleared)
        moves = self._take_off(path, cleared)
        is_tight = rng.random() < 0.5
        for shape, num_clips in self._chunks(moves):
            node = self._some_node(shape, num_clips, around) or current.best_node(
                shape, num_clips, around, target_s, is_tight=is_tight
            )
            current.add(shape, num_clips, node)
            moves.append((shape, num_clips, node))
            if current.loads.below_s[ROOT] > limit_s:
                current.undo(moves)
                return []
        return moves

    def _can_clear(self, node: int) -> bool:
        return self._sizes[node] <= _MOST_CLEARED_GPUS or not self._children[node]

    def _cleared(self, path: list[int]) -> list[int]:
        """A block on the most loaded path, and another one, most often of the same degree."""
        rng = self._rng
        small = [node for node in path if self._can_clear(node)]
        first = small[-1 - int(rng.random() ** 2.5 * len(small))]
        others = self._alike[self._sizes[first]] if rng.random() < 0.8 else self._small
        second = others[int(rng.random() * len(others))]
        return [first] if second == first else [first, second]

    def _around(self, cleared: list[int]) -> list[int]:
        """The cleared blocks with all blocks in and around them, parents first."""
        parents = self._parents
        found: set[int] = set()
        for top in cleared:
            found.update(self._below[top])
            node = parents[top]
            while node != ROOT:
                found.add(node)
                node = parents[node]
        return sorted(found)

    def _take_off(self, path: list[int], cleared: list[int]) -> list[Move]:
        """Take clips off: some of the path's for certain, others by chance."""
        current, rng = self._current, self._rng
        on_path = [(shape, node) for node in path for shape in current.present[node]]
        moves = [self._some_of(*on_path[int(rng.random() * len(on_path))])] if on_path else []
        share = (0.3, 0.6, 1.0)[int(rng.random() * 3.0)]
        for top in cleared:
            for node in self._below[top]:
                for shape in list(current.present[node]):
                    if share == 1.0:
                        moves.append((shape, -current.counts[node][shape], node))
                        current.add(*moves[-1])
                    elif rng.random() < share:
                        moves.append(self._some_of(shape, node))
        return moves

    def _some_of(self, shape: int, node: int) -> Move:
        count = self._current.counts[node][shape]
        chance = self._rng.random()
        if chance < 0.4:
            count = 1
        elif chance < 0.7:
            count = 1 + int(self._rng.random() * count)
        self._current.add(shape, -count, node)
        return (shape, -count, node)

    def _chunks(self, moves: list[Move]) -> list[tuple[int, int]]:
        """What was taken off, as it is put back: whole, in two parts, or clip by clip."""
        rng = self._rng
        chunks: list[tuple[int, int]] = []
        for shape, taken, _ in moves:
            count = -taken
            chance = rng.random()
            if count > 1 and chance < 0.25:
                part = 1 + int(rng.random() * (count - 1))
                chunks += [(shape, part), (shape, count - part)]
            elif 1 < count <= 6 and chance < 0.5:
                chunks += [(shape, 1)] * count
            else:
                chunks.append((shape, count))
        noise = 0.0 if rng.random() < 0.5 else rng.random()
        area_s = self._area_s
        if noise:
            keyed = [(area_s[s] * k * (1.0 + noise * rng.random()), s, k) for s, k in chunks]
        else:
            keyed = [(area_s[s] * k, s, k) for s, k in chunks]
        keyed.sort(reverse=True)
        return [(shape, num_clips) for _, shape, num_clips in keyed]

    def _some_node(self, shape: int, num_clips: int, nodes: list[int]) -> int | None:
        """Now and then any node that can run the clips, whatever it costs; most often None."""
        if self._rng.random() * len(nodes) >= _ANYWHERE:
            return None
        node = nodes[int(self._rng.random() * len(nodes))]
        self._current.costs.reach(shape, self._current.counts[node][shape] + num_clips)
        seconds = self._current.costs.seconds[node][shape]
        return node if seconds[self._current.counts[node][shape] + num_clips] < inf else None
