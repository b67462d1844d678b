from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arachne.cost.robust_fit import Prior, outlier_limit, robust_fit

TOKENS = (24, 96, 300, 700, 1080, 2112, 3120)
REPEATS = 5
ROWS = [(1.0, float(n), float(n * n)) for n in TOKENS for _ in range(REPEATS)]
TRUE = (2e-2, 3e-4, 1e-7)


def seconds(row: tuple[float, ...], coefficients=TRUE) -> float:
    return sum(x * c for x, c in zip(row, coefficients, strict=True))


@given(
    bad=st.sets(
        st.sampled_from([i for i in range(len(ROWS)) if i % REPEATS < 2]), max_size=len(ROWS) // 5
    ),
    factors=st.lists(st.floats(1.5, 50.0), min_size=len(ROWS), max_size=len(ROWS)),
    noise_seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_a_fifth_of_gross_outliers_moves_no_prediction_by_more_than_a_few_percent(
    bad: set[int], factors: list[float], noise_seed: int
):
    random = Random(noise_seed)
    times = [
        seconds(row) * (factors[i] if i in bad else 1.0 + random.uniform(-0.03, 0.03))
        for i, row in enumerate(ROWS)
    ]

    fit = robust_fit(ROWS, times)

    for row in ROWS:
        assert seconds(row, fit.coefficients) == pytest.approx(seconds(row), rel=0.05)
    assert {i for i, is_outlier in enumerate(fit.is_outlier) if is_outlier} == bad


@pytest.mark.parametrize("seed", range(5))
def test_not_even_three_in_ten_that_took_half_as_long_again_count(seed: int):
    random = Random(seed)
    times = [
        seconds(row) * (1.5 if i % 10 in (0, 3, 6) else random.uniform(0.97, 1.03))
        for i, row in enumerate(ROWS)
    ]

    fit = robust_fit(ROWS, times)

    for row in ROWS:
        assert seconds(row, fit.coefficients) == pytest.approx(seconds(row), rel=0.05)


def test_without_disturbance_the_fit_is_exact():
    fit = robust_fit(ROWS, [seconds(row) for row in ROWS])

    assert fit.coefficients == pytest.approx(TRUE, rel=1e-6)
    assert not any(fit.is_outlier)


def test_no_coefficient_is_negative():
    falling = [1.0 / row[1] for row in ROWS]

    assert min(robust_fit(ROWS, falling).coefficients) >= 0.0


def test_one_size_scales_the_whole_prior_and_keeps_its_proportions():
    row = ROWS[20]
    twice = tuple(2.0 * c for c in TRUE)

    fit = robust_fit([row] * 6, [seconds(row)] * 6, Prior(coefficients=twice, weight=0.1))

    assert seconds(row, fit.coefficients) == pytest.approx(seconds(row), rel=0.02)
    shares = [found / true for found, true in zip(fit.coefficients, TRUE, strict=True)]
    assert max(shares) == pytest.approx(min(shares), rel=1e-6)


def test_a_term_that_was_nothing_is_found_in_a_few_fits():
    believed = (0.0, *TRUE[1:])

    for _ in range(4):
        prior = Prior(coefficients=believed, weight=0.1)
        believed = robust_fit(ROWS, [seconds(row) for row in ROWS], prior).coefficients

    assert believed[0] == pytest.approx(TRUE[0], rel=0.05)


def test_few_measurements_need_a_larger_error_to_be_outliers():
    errors = [0.08, 0.1, 0.12]

    assert outlier_limit(errors, num_coefficients=2) > outlier_limit(
        errors * 10, num_coefficients=2
    )
    assert outlier_limit([0.001] * 9, num_coefficients=2) == 0.1
