"""Trying one degree for all clips after another; some may not have the memory."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from arachne.core.errors import InfeasibleError

T = TypeVar("T")


def at_each_degree(degrees: Sequence[int], made_at: Callable[[int], T]) -> list[T]:
    """What `made_at` gives for each degree that it does not refuse, in order; at least one.

    Raises:
        InfeasibleError: It refuses all; says so for the last one.
    """
    found: list[T] = []
    for degree in degrees:
        try:
            found.append(made_at(degree))
        except InfeasibleError:
            if degree == degrees[-1] and not found:
                raise
    return found
