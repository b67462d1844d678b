from itertools import combinations_with_replacement
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arachne.planner.best_stacks import BestStacks

durations = st.lists(st.sampled_from([1.0, 2.5, 4.0, 7.0, 11.0, inf]), min_size=1, max_size=4)


@given(durations, st.integers(0, 7))
def test_no_way_to_cut_is_shorter(durations_s: list[float], num_clips: int):
    shortest_s = min(
        (
            sum(durations_s[size - 1] for size in cut)
            for parts in range(num_clips + 1)
            for cut in combinations_with_replacement(range(1, len(durations_s) + 1), parts)
            if sum(cut) == num_clips
        ),
        default=inf,
    )
    stacks = BestStacks(durations_s)

    assert stacks.extend(num_clips)[num_clips] == shortest_s
    if shortest_s < inf:
        sizes = stacks.sizes(num_clips)
        assert sum(sizes) == num_clips
        assert sum(durations_s[size - 1] for size in sizes) == shortest_s


def test_a_tie_goes_to_fewer_launches():
    assert BestStacks([1.0, 2.0, 3.0]).sizes(5) == [3, 2]


def test_clips_that_do_not_fit_have_no_stacks():
    with pytest.raises(AssertionError, match="do not fit"):
        BestStacks([inf]).sizes(1)
