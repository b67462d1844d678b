"""One degree after another: what does not fit is passed over, and named if nothing does."""

import pytest

from arachne.core.errors import InfeasibleError
from arachne.planner.each_degree import at_each_degree


def least_four(degree: int) -> int:
    if degree < 4:
        raise InfeasibleError(f"too little memory on {degree}")
    return 10 * degree


def test_degrees_without_the_memory_are_passed_over():
    assert at_each_degree((1, 2, 4, 8), least_four) == [40, 80]
    assert at_each_degree((4, 1), least_four) == [40]


def test_where_none_has_the_memory_the_last_one_is_named():
    with pytest.raises(InfeasibleError, match="too little memory on 2"):
        at_each_degree((1, 2), least_four)
