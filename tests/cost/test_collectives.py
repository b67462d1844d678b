import pytest

from arachne.core.cluster import Link
from arachne.cost.collectives import all_gather_s, all_reduce_s, all_to_all_s, reduce_scatter_s

LINK = Link(latency_s=0.5, bandwidth_bytes_per_s=100.0)


@pytest.mark.parametrize("collective", [all_to_all_s, all_gather_s, reduce_scatter_s])
def test_each_rank_sends_all_but_its_own_part(collective):
    # Three steps of half a second, and three quarters of 400 bytes at 100 bytes a second.
    assert collective(400.0, 4, LINK) == 3 * 0.5 + 3.0


def test_all_reduce_is_scatter_and_gather():
    assert all_reduce_s(400.0, 4, LINK) == 2 * (3 * 0.5 + 3.0)


@pytest.mark.parametrize("collective", [all_to_all_s, all_gather_s, reduce_scatter_s, all_reduce_s])
def test_a_group_of_one_costs_nothing(collective):
    assert collective(400.0, 1, LINK) == 0.0
