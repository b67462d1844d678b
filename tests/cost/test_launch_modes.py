from dataclasses import replace

import pytest

from arachne.cost.cluster_files import load_cluster
from arachne.cost.launch_modes import CostOptions, gpu_group

TWO_NODES = load_cluster("h100x16")


def test_recompute_levels_are_quarters_of_the_blocks():
    auto = CostOptions(recompute="auto")

    assert auto.recompute_levels(40) == (0, 10, 20, 30, 40)
    assert auto.recompute_levels(30) == (0, 8, 15, 23, 30)
    assert auto.recompute_levels(3) == (0, 1, 2, 3)
    assert auto.recompute_levels(1) == (0, 1)
    assert CostOptions(recompute="none").recompute_levels(40) == (0,)
    assert CostOptions(recompute="all").recompute_levels(40) == (40,)


def test_rings_divide_the_degree():
    assert CostOptions(ring="auto").rings(12, 4) == (1, 2, 3, 4, 6, 12)
    assert CostOptions(ring="none").rings(12, 4) == (1,)


def test_where_every_rank_needs_a_head_ulysses_groups_are_no_larger_than_the_heads():
    assert CostOptions(ring="auto", needs_heads=True).rings(12, 4) == (3, 4, 6, 12)
    assert CostOptions(needs_heads=True).rings(12, 4) == ()
    assert CostOptions(needs_heads=True).rings(4, 4) == (1,)


def test_degrees_are_limited_by_heads_where_each_rank_needs_one_and_no_ring_runs():
    assert CostOptions(needs_heads=True).is_limited_by_heads
    assert CostOptions(ring="auto", needs_heads=True, can_ring=False).is_limited_by_heads
    assert not CostOptions(ring="auto", needs_heads=True).is_limited_by_heads
    assert not CostOptions().is_limited_by_heads


@pytest.mark.parametrize(
    ("gpus", "inside"),
    [
        (range(16), 8),
        (range(8), 8),
        (range(4, 12), 4),
        (range(6, 12), 2),
        (range(5, 11), 3),
        (range(7, 13), 1),
        ((0, 1, 2, 8, 9, 10), 3),
    ],
)
def test_ulysses_groups_lie_inside_nodes_if_their_size_divides_where_nodes_change(gpus, inside):
    group = gpu_group(TWO_NODES, tuple(gpus))

    assert group.inside == inside
    for ulysses in (size for size in range(1, len(gpus) + 1) if len(gpus) % size == 0):
        parts = [gpus[first : first + ulysses] for first in range(0, len(gpus), ulysses)]
        are_inside = all(len({TWO_NODES.node_of(rank) for rank in part}) == 1 for part in parts)
        expected = TWO_NODES.intra_node if are_inside else group.link
        assert group.ulysses_link(ulysses) == expected


def test_a_group_is_as_fast_as_its_slowest_rank():
    speeds = tuple(0.5 if rank == 3 else 1.0 for rank in range(16))
    mixed = replace(TWO_NODES, speeds=speeds)

    assert gpu_group(mixed, (2, 3)).speed == 0.5
    assert gpu_group(mixed, (4, 5)) == gpu_group(mixed, (6, 7))
    assert gpu_group(mixed, (4, 5)) != gpu_group(mixed, (2, 3))


def test_ranks_that_share_a_nic_share_its_bandwidth():
    shared = replace(TWO_NODES, nics_per_node=2)

    whole = gpu_group(shared, tuple(range(16)))
    pair = gpu_group(shared, (7, 8))
    assert pair.link == TWO_NODES.inter_node
    assert whole.link.bandwidth_bytes_per_s == TWO_NODES.inter_node.bandwidth_bytes_per_s / 4
    assert whole.ulysses_link(8) == TWO_NODES.intra_node
