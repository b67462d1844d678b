"""Groups that come and go: what a plan needs is there, and no rank is in more than it may."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from arachne.core.blocks import allowed_degrees, laminar, plan_blocks
from arachne.runtime.group_budget import GroupBudget

PAIRS = ((0, 1), (2, 3))
FOUR = (0, 1, 2, 3)


def test_the_least_recently_used_group_goes_first():
    budget = GroupBudget(6, 2)
    assert budget.take([(0, 1)]) == ([], [(0, 1)])
    assert budget.take([(0, 1, 2)]) == ([], [(0, 1, 2)])
    assert budget.take([(0, 1)]) == ([], [])
    assert budget.take([FOUR]) == ([(0, 1, 2)], [FOUR])
    assert budget.take([(2, 3), (4, 5)]) == ([], [(2, 3), (4, 5)]), "these ranks have room"


def test_groups_are_made_in_one_order_whatever_the_plans():
    assert GroupBudget(4, 1).take([FOUR, (2, 3), (0, 1)]) == ([], [*PAIRS, FOUR])


def test_a_plan_has_all_its_groups_even_if_they_are_too_many():
    budget = GroupBudget(4, 1)
    budget.take([*PAIRS, FOUR])
    assert budget.take([(0, 1, 2)]) == ([(0, 1), FOUR, (2, 3)], [(0, 1, 2)])


@given(st.integers(2, 12), st.integers(1, 4), st.integers(0, 10**6))
def test_no_rank_is_in_more_groups_than_it_may_or_its_plan_needs(world_size, most_per_rank, seed):
    rng = Random(seed)
    of_degree = plan_blocks(world_size, allowed_degrees(world_size, world_size))
    candidates = [block for blocks in of_degree.values() for block in blocks if len(block) > 1]
    budget, existing = GroupBudget(world_size, most_per_rank), set()
    for _ in range(20):
        needed = laminar(
            world_size, rng.sample(candidates, rng.randint(1, min(4, len(candidates))))
        )
        dropped, made = budget.take(needed)
        assert existing.issuperset(dropped)
        existing -= set(dropped)
        assert existing.isdisjoint(made)
        existing |= set(made)
        assert existing.issuperset(needed)
        for rank in range(world_size):
            num_held = sum(rank in ranks for ranks in existing)
            num_needed = sum(rank in ranks for ranks in needed)
            assert num_held <= max(most_per_rank, num_needed)
