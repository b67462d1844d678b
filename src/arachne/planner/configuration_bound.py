"""A stronger time that no plan can beat: what fits on one GPU cannot be cut at will.

In a plan no longer than T every GPU runs a *configuration* (`planner/configurations.py`). So if
configurations within T need more GPUs than there are to hold all clips, no plan is as short as T.
Unlike the area bound it sees that what is left beside a long launch may be too short for anything.
Waiting for encoders is not seen. It costs some tenths of a second, and serves comparisons.
"""

from math import floor, inf

from arachne.planner.configurations import Knapsack, Stack, cover
from arachne.planner.lower_bound import lower_bound_s
from arachne.planner.problem import PlanningProblem
from arachne.planner.variants import Variants

_TICKS = 1000
"""T is cut into so many ticks; seconds are rounded down to ticks, so the bound stays one."""

_MOST_PIVOTS = 100
_HALVINGS = 10
_LONGEST = 1.5
"""The bound is looked for up to this multiple of the area bound."""

_ROUNDING = 1e-9


def configuration_bound_s(problem: PlanningProblem) -> float:
    """A lower bound of every plan's makespan, at least `lower_bound_s`.

    Raises:
        InfeasibleError: A clip does not fit on any block, whatever it is stacked with.
    """
    variants = Variants(problem)
    low_s = lower_bound_s(problem, variants)
    high_s = low_s * _LONGEST
    if not variants.num_shapes or not _is_too_short(variants, low_s):
        return low_s
    for _ in range(_HALVINGS):
        middle_s = (low_s + high_s) / 2.0
        if _is_too_short(variants, middle_s):
            low_s = middle_s
        else:
            high_s = middle_s
    return low_s


def _is_too_short(variants: Variants, limit_s: float) -> bool:
    """Whether it is proved that no plan is as short as `limit_s`."""
    stacks = _stacks_within(variants, limit_s)
    free = {stack.shape for stack in stacks if stack.ticks == 0}
    shapes = [shape for shape in range(variants.num_shapes) if shape not in free]
    counts = [float(len(variants.slots_of_shape[shape])) for shape in shapes]
    knapsack = Knapsack(
        [
            Stack(
                ticks=stack.ticks,
                shape=shapes.index(stack.shape),
                num_clips=stack.num_clips,
                degree=stack.degree,
            )
            for stack in stacks
            if stack.shape not in free
        ],
        _TICKS,
    )
    found = cover(counts, [knapsack], _MOST_PIVOTS) if shapes else None
    return found is not None and found.proved_gpus > variants.problem.num_gpus * (1.0 + _ROUNDING)


def _stacks_within(variants: Variants, limit_s: float) -> list[Stack]:
    """The stacks no longer than the limit, of each the fastest kind of block; ticks may be none."""
    found: list[Stack] = []
    for shape in range(variants.num_shapes):
        for degree, kinds in variants.kinds_of_degree.items():
            for size in range(1, variants.most_clips(shape) + 1):
                seconds = min(
                    [variants.duration_s((shape, size), gpus) for gpus in kinds], default=inf
                )
                if seconds <= limit_s:
                    ticks = floor(seconds / limit_s * _TICKS * (1.0 - _ROUNDING))
                    found.append(Stack(ticks=ticks, shape=shape, num_clips=size, degree=degree))
    return found
