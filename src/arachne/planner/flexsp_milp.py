"""FlexSP's integer programme for one micro-batch: groups of GPUs, and how many clips each runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from math import inf
from typing import Any

import numpy as np

_GAP = 0.01
"""The solver stops when it is this near to the optimum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Cascades that cost the same.

    Attributes:
        count: How many.
        seconds: Of one, by degree; infinite where it does not fit.
        shares: Of a group's memory that one takes, by degree.
    """

    count: int
    seconds: Sequence[float]
    shares: Sequence[float]


def fewest_seconds(
    kinds: Sequence[Kind], degrees: Sequence[int], num_gpus: int, *, limit_s: float
) -> list[tuple[int, list[int]]]:
    """Groups as (degree, cascades of each kind), the longest of which is as short as can be.

    With x clips of kind k in group g, u = 1 for groups in use and the longest time T:

        minimise T,  Σ_g x[k,g] = count[k],  Σ_k seconds[k,g]·x[k,g] ≤ T,
        Σ_k share[k,g]·x[k,g] ≤ u[g],  Σ_g degree[g]·u[g] ≤ GPUs

    Groups of one degree are alike, so they are used in order. Source: FlexSP's formulation, as
    described; x integer, u binary. Empty if there is no solution, or none was found in `limit_s`.
    """
    num_cascades = sum(kind.count for kind in kinds)
    groups = [
        index
        for index, degree in enumerate(degrees)
        for _ in range(min(num_gpus // degree, num_cascades))
    ]
    optimize: Any = import_module("scipy.optimize")  # half a second to load; has no complete types
    num_x, num_groups = len(kinds) * len(groups), len(groups)
    longest = max((s for kind in kinds for s in kind.seconds if s < inf), default=1.0)
    rows: list[Any] = []
    lower: list[float] = []
    upper: list[float] = []

    def add(row: Any, at_least: float, at_most: float) -> None:
        rows.append(row)
        lower.append(at_least)
        upper.append(at_most)

    upper_x = np.zeros((len(kinds), num_groups))
    for k, kind in enumerate(kinds):
        row = _zeros(num_x, num_groups)
        row[k * num_groups : (k + 1) * num_groups] = 1.0
        add(row, kind.count, kind.count)
        upper_x[k] = [kind.count if kind.seconds[index] < inf else 0 for index in groups]
    for g, index in enumerate(groups):
        time_row, memory_row = _zeros(num_x, num_groups), _zeros(num_x, num_groups)
        for k, kind in enumerate(kinds):
            if kind.seconds[index] < inf:
                time_row[k * num_groups + g] = kind.seconds[index] / longest
                memory_row[k * num_groups + g] = kind.shares[index]
        time_row[-1] = -1.0
        memory_row[num_x + g] = -1.0
        add(time_row, -inf, 0.0)
        add(memory_row, -inf, 0.0)
        if g and groups[g - 1] == index:
            order_row = _zeros(num_x, num_groups)
            order_row[num_x + g - 1], order_row[num_x + g] = 1.0, -1.0
            add(order_row, 0.0, inf)
    gpus_row = _zeros(num_x, num_groups)
    gpus_row[num_x : num_x + num_groups] = [degrees[index] for index in groups]
    add(gpus_row, 0.0, num_gpus)
    result: Any = optimize.milp(
        c=np.eye(1, num_x + num_groups + 1, num_x + num_groups)[0],
        integrality=np.append(np.ones(num_x + num_groups), 0.0),
        bounds=optimize.Bounds(0.0, np.concatenate([upper_x.ravel(), np.ones(num_groups), [inf]])),
        constraints=optimize.LinearConstraint(np.array(rows), lower, upper),
        options={"time_limit": limit_s, "mip_rel_gap": _GAP},
    )
    if result.x is None:
        return []
    dealt = np.rint(result.x[:num_x]).astype(int).reshape(len(kinds), num_groups)
    return [
        (degrees[index], [int(number) for number in dealt[:, g]])
        for g, index in enumerate(groups)
        if dealt[:, g].any()
    ]


def _zeros(num_x: int, num_groups: int) -> Any:
    return np.zeros(num_x + num_groups + 1)
