"""Local search on a block tree: take a few cascades off, put them back where they cost least.

Each step removes at least one cascade of the most loaded path and a few others, may split a stack
or join two, and reinserts the largest first. Small setbacks are accepted early on (threshold
accepting, Dueck and Scheuer, 1990); the best assignment seen is kept.
"""

from random import Random

from arachne.planner.assignment import Assignment, Placed
from arachne.planner.variants import Variant, Variants

_MOST_REMOVED = 5
_FIRST_SETBACK = 0.02
"""Relative setback accepted at the first step; it falls linearly to none."""


def improved(start: Assignment, bound_s: float, iterations: int, rng: Random) -> list[Placed]:
    """Items of the best assignment found in `iterations` steps; `start` is used up."""
    current = start
    best, best_s = current.placed(), current.makespan_s
    for iteration in range(iterations):
        if best_s <= bound_s * (1.0 + 1e-7):
            break
        before_s = current.makespan_s
        removed = _removed(current, rng)
        added = _reinserted(current, _regrouped(current.variants, removed, rng), best_s, rng)
        now_s = current.makespan_s
        setback = _FIRST_SETBACK * (1.0 - iteration / iterations)
        if now_s > before_s and now_s > best_s * (1.0 + setback):
            for variant, node in added:
                current.remove(variant, node)
            for variant, node in removed:
                current.add(variant, node)
        elif now_s < best_s * (1.0 - 1e-9):
            best, best_s = current.placed(), now_s
    return best


def _removed(current: Assignment, rng: Random) -> list[Placed]:
    """Take one item off the most loaded path and up to `_MOST_REMOVED` − 1 others."""
    critical: list[Placed] = [
        (variant, node) for node in current.loads.critical_path() for variant in current.items[node]
    ]
    removed = [critical[int(rng.random() * len(critical))]]
    current.remove(*removed[0])
    others = current.placed()
    for _ in range(min(int(rng.random() * _MOST_REMOVED), len(others))):
        index = int(rng.random() * len(others))
        others[index], others[-1] = others[-1], others[index]
        removed.append(others.pop())
        current.remove(*removed[-1])
    return removed


def _regrouped(variants: Variants, removed: list[Placed], rng: Random) -> list[Variant]:
    """The removed variants; now and then one stack is split, or two of a shape are joined."""
    items = [variant for variant, _ in removed]
    chance = rng.random()
    if chance < 0.15:
        shape, size = items[0]
        if size > 1:
            part = 1 + int(rng.random() * (size - 1))
            return [(shape, part), (shape, size - part), *items[1:]]
    elif chance < 0.3:
        for index, (shape, size) in enumerate(items[1:], start=1):
            if shape == items[0][0] and size + items[0][1] <= variants.most_clips(shape):
                return [(shape, size + items[0][1]), *items[1:index], *items[index + 1 :]]
    return items


def _reinserted(
    current: Assignment, items: list[Variant], best_s: float, rng: Random
) -> list[Placed]:
    """Put items back, the longest first (now and then in any order), aiming below the best."""
    if rng.random() < 0.8:
        items.sort(key=lambda variant: (-min(current.durations_s(variant)), variant))
    target_s = best_s * (1.0 - 0.01 * rng.random())
    added: list[Placed] = []
    for variant in items:
        node = current.best_node(variant, target_s)
        current.add(variant, node)
        added.append((variant, node))
    return added
