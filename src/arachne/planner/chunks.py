"""Cuts a list into neighbouring chunks of nearly equal weight."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def even_chunks(items: Sequence[T], weights: Sequence[float], most: int) -> list[list[T]]:
    """At most `most` chunks of neighbours, of which the heaviest is as light as it can be.

    The least limit for which filling chunks one after another needs no more than `most`, by
    bisection: the optimum that a dynamic programme would find, up to 1e-9 of the total.
    """
    if not items:
        return []
    low, high = max(weights), sum(weights)
    for _ in range(40):
        middle = (low + high) / 2.0
        if len(_filled(items, weights, middle)) <= most:
            high = middle
        else:
            low = middle
    return _filled(items, weights, high)


def _filled(items: Sequence[T], weights: Sequence[float], limit: float) -> list[list[T]]:
    chunks: list[list[T]] = []
    held = 0.0
    for item, weight in zip(items, weights, strict=True):
        if not chunks or held + weight > limit:
            chunks.append([])
            held = 0.0
        chunks[-1].append(item)
        held += weight
    return chunks
