"""Times as sums of non-negative terms, fitted so that a few disturbed measurements do not count.

1. Least absolute relative errors: the fit goes through the bulk of the measurements, however far
   above it a minority lies. (Far below is another matter: what is divided by a short time weighs
   much. But other work on a machine only adds time.)
2. Measurements that lie far from that fit, beside what is usual, are outliers.
3. Least squares of the relative errors of all others: the best use of the good ones.

Source: Rousseeuw and Leroy, Robust Regression and Outlier Detection (1987), reweighted least
squares; the linear program of step 1 is the usual one for least absolute deviations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median
from typing import Any

import numpy as np

_CUTOFF = 2.5
"""Standard deviations beyond which a measurement is an outlier (Rousseeuw and Leroy)."""

_TIE_BREAK = 1e-3

_LEAST_LIMIT = 0.1
"""Relative error that never makes an outlier. *Assumption*: the cost model itself is no better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Coefficients that were believed before, and how many measurements that belief is worth."""

    coefficients: tuple[float, ...]
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RobustFit:
    """What was found.

    Attributes:
        coefficients: One for each column, none negative.
        is_outlier: Of each measurement: whether it was left out.
    """

    coefficients: tuple[float, ...]
    is_outlier: tuple[bool, ...]


def robust_fit(
    columns: Sequence[tuple[float, ...]], times_s: Sequence[float], prior: Prior | None = None
) -> RobustFit:
    """Coefficients b ≥ 0 with Σ columns·b near `times_s`, relative to them; all times are above 0.

    With a prior b0 the terms x·b that the measurements do not tell apart keep the proportions
    that they had: its penalty is weight · Σ (β − β0)² / β0, where β = x·b is a term's share of the
    measurement in which it is largest.
    """
    shares = np.array(columns, dtype=np.float64) / np.array(times_s)[:, None]
    # Columns differ by many orders of magnitude: each is scaled to a largest share of 1.
    scales = shares.max(axis=0)
    scales[scales == 0.0] = 1.0
    rows, targets = shares / scales, np.ones(len(times_s))
    prior_rows, prior_targets = _prior_rows(prior, scales)
    # In the sketch the prior only settles what the measurements leave open.
    sketch = _least_absolute(
        np.vstack([rows, _TIE_BREAK * prior_rows]),
        np.concatenate([targets, _TIE_BREAK * prior_targets]),
    )
    errors = [float(error) for error in np.abs(rows @ sketch - targets)]
    limit = outlier_limit(errors, num_coefficients=rows.shape[1])
    is_kept = np.array([error <= limit for error in errors])
    solution = _least_squares(
        np.vstack([rows[is_kept], prior_rows]), np.concatenate([targets[is_kept], prior_targets])
    )
    return RobustFit(
        coefficients=tuple(float(x) for x in solution / scales),
        is_outlier=tuple(not kept for kept in is_kept.tolist()),
    )


def outlier_limit(errors: Sequence[float], *, num_coefficients: int) -> float:
    """The relative error above which a measurement is an outlier.

    2.5 robust standard deviations, 1.4826 · (1 + 5 / (n − p)) · median |error|, the factor being
    Rousseeuw and Leroy's for few measurements; at least 10 %.
    """
    num_spare = max(len(errors) - num_coefficients, 1)
    deviation = 1.4826 * (1.0 + 5.0 / num_spare) * median(errors)
    return max(_CUTOFF * deviation, _LEAST_LIMIT)


def _prior_rows(prior: Prior | None, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The prior as rows of the same least-squares problem; none without a prior."""
    size = len(scales)
    if prior is None:
        return np.zeros((0, size)), np.zeros(0)
    believed = np.array(prior.coefficients) * scales
    # A term that was nothing may still rise, as easily as one of a hundredth.
    weights = sqrt(prior.weight) / np.sqrt(np.maximum(believed, 0.01))
    return np.diag(weights), weights * believed


def _least_absolute(rows: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """x ≥ 0 that minimises Σ |rows·x − targets|: rows·x + under − over = targets, all ≥ 0."""
    from scipy import optimize  # half a second to import  # pyright: ignore[reportMissingTypeStubs]

    num_rows, size = rows.shape
    eye = np.eye(num_rows)
    cost = np.concatenate([np.zeros(size), np.ones(2 * num_rows)])
    linprog: Any = getattr(optimize, "linprog")  # noqa: B009 - scipy has no complete types
    found = linprog(cost, A_eq=np.hstack([rows, eye, -eye]), b_eq=targets, method="highs")
    assert found.status == 0, found.message
    return np.asarray(found.x[:size])


def _least_squares(rows: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """x ≥ 0 that minimises Σ (rows·x − targets)²."""
    from scipy import optimize  # pyright: ignore[reportMissingTypeStubs]

    nnls: Any = getattr(optimize, "nnls")  # noqa: B009 - scipy has no complete types
    return np.asarray(nnls(rows, targets)[0])
