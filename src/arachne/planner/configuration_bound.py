"""A stronger time that no plan can beat: what fits on one GPU cannot be cut at will.

In a plan no longer than T every GPU runs a *configuration*: stacks whose seconds add up to at most
T. A stack of k clips on p GPUs trains k / p of a clip on each. So for any prices of clips

    Σ over shapes of clips · price  ≤  GPUs · (the most that a configuration within T is worth),

and where that fails, no plan is as short as T. The right side is a knapsack; good prices come from
the dual of the configuration programme, by column generation (Gilmore and Gomory, 1961). Unlike the
area bound it sees that what is left beside a long launch may be too short for anything. It costs
some tenths of a second, and serves comparisons; the search does not need it.
"""

from dataclasses import dataclass
from importlib import import_module
from math import floor, inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arachne.planner.lower_bound import lower_bound_s
from arachne.planner.problem import PlanningProblem
from arachne.planner.variants import Variants

_TICKS = 1000
"""T is cut into so many ticks; seconds are rounded down to ticks, so the bound stays one."""

_MOST_COLUMNS = 60
_HALVINGS = 8
_LONGEST = 1.5
"""The bound is looked for up to this multiple of the area bound."""

_ROUNDING = 1e-9

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def configuration_bound_s(problem: PlanningProblem) -> float:
    """A lower bound of every plan's makespan, at least `lower_bound_s`.

    Raises:
        InfeasibleError: A clip does not fit on any block, whatever it is stacked with.
    """
    variants = Variants(problem)
    low_s = lower_bound_s(problem, variants)
    high_s = low_s * _LONGEST
    if not problem.batch.clips or not _is_too_short(variants, low_s):
        return low_s
    for _ in range(_HALVINGS):
        middle_s = (low_s + high_s) / 2.0
        if _is_too_short(variants, middle_s):
            low_s = middle_s
        else:
            high_s = middle_s
    return low_s


@dataclass(frozen=True, slots=True)
class _Stacks:
    """Stacks that fit into a time, cheapest first: ticks, shape, and clips on each GPU."""

    ticks: Ints
    shapes: Ints
    clips: Floats

    def best_configuration(self, prices: Floats) -> tuple[float, Floats]:
        """The most that a GPU's time can be worth, and the clips of each shape that are."""
        worth = prices[self.shapes] * self.clips
        most = np.zeros(_TICKS + 1)
        last = np.full(_TICKS + 1, -1)
        num_fitting = np.searchsorted(self.ticks, np.arange(_TICKS + 1), side="right")
        for tick in range(1, _TICKS + 1):
            most[tick] = most[tick - 1]
            fitting = int(num_fitting[tick])
            if fitting:
                values = most[tick - self.ticks[:fitting]] + worth[:fitting]
                chosen = int(values.argmax())
                if values[chosen] > most[tick]:
                    most[tick], last[tick] = values[chosen], chosen
        clips = np.zeros(len(prices))
        tick = _TICKS
        while tick > 0:
            chosen = int(last[tick])
            if chosen < 0:
                tick -= 1
            else:
                clips[self.shapes[chosen]] += self.clips[chosen]
                tick -= int(self.ticks[chosen])
        return float(most[_TICKS]), clips


def _is_too_short(variants: Variants, limit_s: float) -> bool:
    """Whether prices were found that prove that no plan is as short as `limit_s`."""
    optimize: Any = import_module("scipy.optimize")  # half a second to load; has no complete types
    stacks, counts = _stacks_within(variants, limit_s)
    num_gpus = variants.problem.num_gpus
    columns: list[Floats] = [
        stacks.best_configuration(np.eye(len(counts))[shape])[1]
        for shape in range(len(counts))
        if counts[shape] > 0.0
    ]
    while columns and len(columns) < _MOST_COLUMNS:
        programme = optimize.linprog(
            np.ones(len(columns)), A_ub=-np.array(columns).T, b_ub=-counts, method="highs"
        )
        if programme.status != 0 or programme.fun <= num_gpus:
            return False
        prices: Floats = np.maximum(-np.asarray(programme.ineqlin.marginals, dtype=float), 0.0)
        most, column = stacks.best_configuration(prices)
        if float(counts @ prices) > num_gpus * most * (1.0 + _ROUNDING):
            return True
        columns.append(column)
    return False


def _stacks_within(variants: Variants, limit_s: float) -> tuple[_Stacks, Floats]:
    """Stacks no longer than the limit, and how many clips of each shape there are.

    A shape that has a stack of no ticks is left out, and counts as having no clips.
    """
    counts = np.array([float(len(slots)) for slots in variants.slots_of_shape])
    most_clips: dict[tuple[int, int], float] = {}
    for shape in range(variants.num_shapes):
        for degree, kinds in variants.kinds_of_degree.items():
            for size in range(1, variants.most_clips(shape) + 1):
                seconds = min(
                    [variants.duration_s((shape, size), gpus) for gpus in kinds], default=inf
                )
                if seconds <= limit_s:
                    ticks = floor(seconds / limit_s * _TICKS * (1.0 - _ROUNDING))
                    clips = most_clips.get((ticks, shape), 0.0)
                    most_clips[ticks, shape] = max(clips, size / degree)
                    if ticks == 0:
                        counts[shape] = 0.0
    kept = sorted((key, clips) for key, clips in most_clips.items() if counts[key[1]] > 0.0)
    return (
        _Stacks(
            np.array([ticks for (ticks, _), _ in kept], dtype=np.int64),
            np.array([shape for (_, shape), _ in kept], dtype=np.int64),
            np.array([clips for _, clips in kept]),
        ),
        counts,
    )
