"""The search of planner `arachne`: many starts, a few steps on each, more on the best of them.

Starts are the baselines' plans, greedy assignments on trees of several kinds, and assignments made
of whole configurations for different times. How many there are and how long each is searched
follows from the number of iterations alone, so that the same problem gives the same plan anywhere.
"""

from collections.abc import Sequence
from random import Random

from arachne.core.plan import Plan
from arachne.planner.assignment import Assignment
from arachne.planner.configuration_start import ConfigurationStarts
from arachne.planner.tree_search import improved
from arachne.planner.trees import MOST_GPUS, Trees
from arachne.planner.variants import Variants
from arachne.planner.warm_start import constructed, from_plan

_PARTS = (0.3, 0.55, 0.2, 0.75, 0.4, 0.1, 0.65, 0.5, 0.25, 0.85, 0.35, 0.6)
"""Where the time of the next configuration start lies, between what is known to be too short for
configurations and the best so far."""

ITERATIONS_OF_A_START = 400
"""Iterations for each of them, up to all: making one takes as long as some hundred steps. Searches
that are shorter than this have greedy starts on one tree alone.
"""

_STARTS_OF_A_TREE = 2
_MOST_STARTS, _MOST_IN_SMALL_WORLDS = 8, 24
"""Greedy starts and baselines that are searched; more in worlds with many trees."""

_MOST_FIRST_STEPS = 150
_FIRST_SHARE, _SECOND_SHARE = 0.4, 0.3
"""Parts of the iterations that all starts, and then the best of them, are searched with."""

_SECOND_STARTS = 4


def searched(variants: Variants, plans: Sequence[Plan], bound_s: float) -> Assignment | None:
    """The best assignment found within the problem's iterations; None if there is no start.

    `plans` are those of the baselines; with few iterations greedy starts come from one tree only.
    """
    iterations = variants.problem.iterations
    parts = _PARTS[: iterations // ITERATIONS_OF_A_START] if variants.num_shapes else ()
    search = _Search(variants, bound_s)
    problem = variants.problem
    has_many_trees = problem.num_gpus <= MOST_GPUS or problem.has_blocks_from_both_ends
    most = _MOST_IN_SMALL_WORLDS if has_many_trees else _MOST_STARTS
    starts = search.greedy_starts(plans, is_quick=not parts)[:most]
    num_starts = max(len(starts) + len(parts), 1)
    num_steps = min(_MOST_FIRST_STEPS, int(_FIRST_SHARE * iterations) // num_starts)
    for start in starts:
        search.take(start, num_steps)
    for turn, part in enumerate(parts):
        search.take(search.configured(part, turn), num_steps)
    search.narrow(_SECOND_STARTS, int(_SECOND_SHARE * iterations))
    search.narrow(1, iterations - search.num_steps)
    return search.best


class _Search:
    """The starts taken so far, and the steps spent on them.

    Attributes:
        num_steps: Steps of search so far.
    """

    def __init__(self, variants: Variants, bound_s: float) -> None:
        self._variants = variants
        self._bound_s = bound_s
        self._too_short_s: dict[int, float] = {}
        self._rng = Random(variants.problem.seed)
        self._taken: list[Assignment] = []
        self._trees = Trees(variants)
        self._configurations = ConfigurationStarts(variants, self._trees)
        self.num_steps = 0

    @property
    def best(self) -> Assignment | None:
        """The shortest assignment taken; ties to the first."""
        return min(self._taken, key=lambda start: start.makespan_s, default=None)

    def greedy_starts(self, plans: Sequence[Plan], *, is_quick: bool) -> list[Assignment]:
        """Starts from plans and on trees, of one tree if `is_quick`.

        Shortest first, but those that do the same as another on another tree come last.
        """
        found = [from_plan(self._trees.with_blocks_of(plan), plan) for plan in plans]
        for costs in self._trees.of_all_kinds()[: 1 if is_quick else None]:
            found += constructed(costs, self._bound_s, _STARTS_OF_A_TREE)
        shortest_first = sorted(
            (start for start in found if start is not None), key=lambda start: start.makespan_s
        )
        firsts: dict[object, Assignment] = {}
        others = [s for s in shortest_first if firsts.setdefault(s.contents, s) is not s]
        return [*firsts.values(), *others]

    def configured(self, part: float, turn: int) -> Assignment | None:
        """A start made of configurations; None if they have no room for all clips in its time.

        In turn they come from all ladders at once and from one alone, which mixes nothing.
        """
        ladders = self._trees.ladders
        choices = [ladders, *([ladder] for ladder in ladders)] if len(ladders) > 1 else [ladders]
        choice = turn % len(choices)
        best_s = self.best.makespan_s if self.best is not None else 2.0 * self._bound_s
        too_short_s = min(self._too_short_s.get(choice, self._bound_s), best_s)
        limit_s = too_short_s + part * (best_s - too_short_s)
        start = self._configurations.within(limit_s, choices[choice])
        if start is None:
            self._too_short_s[choice] = limit_s
        return start

    def take(self, start: Assignment | None, num_steps: int) -> None:
        """Search from a start, unless there is none, and keep what is found."""
        if start is not None:
            self._taken.append(self._improved(start, num_steps))

    def narrow(self, number: int, num_steps: int) -> None:
        """Keep the best only, and search on them with so many steps in all."""
        self._taken = sorted(self._taken, key=lambda start: start.makespan_s)[:number]
        for start in self._taken:
            self._improved(start, max(num_steps, 0) // len(self._taken))

    def _improved(self, start: Assignment, num_steps: int) -> Assignment:
        self.num_steps += num_steps
        return improved(start, self._bound_s, num_steps, self._rng)
