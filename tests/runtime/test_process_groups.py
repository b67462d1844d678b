"""Groups are created once, by all ranks alike, and each is checked before it is used."""

import os
import random

import pytest
import torch
import torch.distributed as dist

from arachne.core.blocks import allowed_degrees, laminar, plan_blocks
from arachne.runtime import collectives, process_groups
from arachne.runtime.clock import clock_for
from arachne.runtime.launcher import run_ranks
from arachne.runtime.process_groups import ProcessGroups
from arachne.runtime.recorder import Recorder
from tests.runtime.rank_groups import open_groups

pytestmark = pytest.mark.distributed


def groups_of_rank(world):
    created = []
    kept = dist.new_group
    dist.new_group = lambda ranks, **options: created.append(tuple(ranks)) or kept(ranks, **options)
    try:
        _, groups = open_groups(world)
    finally:
        dist.new_group = kept
    mine = {}
    for ranks in [*created, tuple(range(world.size)), (world.rank,)]:
        if world.rank in ranks:
            group = groups.of(ranks)
            total = torch.tensor([float(2**world.rank)])
            collectives.all_reduce_sum(total, group)
            mine[ranks] = (group.size, group.index, int(total))
    return groups.num_groups, created, mine, groups.world.ranks


@pytest.mark.parametrize(
    ("world_size", "created"),
    [
        (1, []),
        (2, []),
        (3, [(0, 1)]),
        (4, [(0, 1), (2, 3), (0, 1, 2)]),
        (6, [(0, 1), (2, 3), (4, 5), (0, 1, 2), (3, 4, 5), (0, 1, 2, 3)]),
        (
            7,
            [
                *((0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6)),
                *((0, 1, 2), (1, 2, 3), (3, 4, 5), (4, 5, 6)),
                *((0, 1, 2, 3), (3, 4, 5, 6), (0, 1, 2, 3, 4, 5), (1, 2, 3, 4, 5, 6)),
            ],
        ),
    ],
)
def test_all_ranks_create_the_same_groups_in_one_order(world_size, created):
    everyone = tuple(range(world_size))
    for rank, (num_groups, seen, mine, world_ranks) in enumerate(
        run_ranks(world_size, groups_of_rank, timeout_s=15.0)
    ):
        assert seen == created, "the world's own group and groups of one rank are not created"
        assert num_groups == len(created) + (world_size > 1)
        assert world_ranks == everyone
        expected = {ranks for ranks in created if rank in ranks} | {(rank,), everyone}
        assert set(mine) == expected
        for ranks, (size, index, total) in mine.items():
            assert size == len(ranks)
            assert ranks[index] == rank
            assert total == sum(2**member for member in ranks)


def ask_for(world, ranks):
    _, groups = open_groups(world)
    try:
        groups.of(ranks)
    except KeyError:
        return True
    return False


@pytest.mark.parametrize("ranks", [(1, 2), (0, 2), (1, 0), (0, 3), ()])
def test_ranks_that_no_group_has_are_a_key_error(ranks):
    assert run_ranks(3, ask_for, (ranks,), timeout_s=15.0) == [True] * 3


def ask_for_anothers(world):
    return ask_for(world, (0, 1))


def test_a_rank_has_no_group_that_it_is_no_member_of():
    assert run_ranks(4, ask_for_anothers, timeout_s=15.0) == [False, False, True, True]


def open_shifted(world):
    """Rank 0 puts its number wrongly into every sum, as if it met another group's members."""
    kept = dist.all_reduce
    if world.rank == 0:
        process_groups.dist.all_reduce = lambda total, group: kept(total.add_(5), group=group)
    open_groups(world)


def test_a_group_that_sums_wrongly_is_noticed_at_once():
    with pytest.raises(RuntimeError, match=r"group \(0, 1\) sums to 6"):
        run_ranks(2, open_shifted, timeout_s=15.0)


def uneven_exchange(world):
    """Rank r sends r + p elements of value 10 r + p to rank p."""
    _, groups = open_groups(world)
    sent = [world.rank + peer for peer in range(world.size)]
    pieces = [torch.full((n,), 10.0 * world.rank + peer) for peer, n in enumerate(sent)]
    received = torch.empty(sum(sent))
    sizes = collectives.Sizes(received=sent, sent=sent, of_all_members=18)
    collectives.all_to_all(received, torch.cat(pieces), sizes, groups.world)
    scattered = torch.empty(2)
    full = torch.arange(6.0).reshape(2, 3).t().reshape(6)  # no view of a contiguous tensor
    collectives.reduce_scatter(scattered, full, groups.world)
    gathered = torch.empty(6)
    collectives.all_gather(gathered, scattered, groups.world)
    largest = torch.tensor([float(world.rank), -float(world.rank)])
    collectives.all_reduce_max(largest, groups.world)
    return received.tolist(), gathered.tolist(), largest.tolist()


def test_collectives_move_what_they_say():
    for rank, (received, gathered, largest) in enumerate(
        run_ranks(3, uneven_exchange, timeout_s=15.0)
    ):
        assert received == [10.0 * peer + rank for peer in range(3) for _ in range(rank + peer)]
        assert gathered == [0.0, 9.0, 3.0, 12.0, 6.0, 15.0]
        assert largest == [2.0, 0.0]


def groups_over_time(world, most_per_rank, num_plans):
    """Groups for random plans, one after another: sums in them, and what is held after each."""
    recorder = Recorder(rank=world.rank, world_size=world.size, clock=clock_for(world.device))
    degrees = allowed_degrees(world.size, world.size)
    groups = ProcessGroups(world, degrees, recorder, most_per_rank=most_per_rank)
    candidates = [ranks for found in plan_blocks(world.size, degrees).values() for ranks in found]
    rng = random.Random(0)
    held, files = [], []
    for _ in range(num_plans):
        plan = laminar(world.size, rng.sample(candidates, rng.randint(1, 3)))
        groups.prepare(plan)
        for ranks in plan:
            if world.rank in ranks:
                total = torch.tensor([2.0**world.rank])
                collectives.all_reduce_sum(total, groups.of(ranks))
                assert int(total) == sum(2**member for member in ranks)
        needed = sum(world.rank in ranks for ranks in plan if 1 < len(ranks) < world.size)
        mine = sum(world.rank in ranks for ranks in groups.existing) - 1
        held.append((mine, needed))
        collectives.all_reduce_sum(torch.zeros(1), groups.world)
        files.append(len(os.listdir("/proc/self/fd")))
    return held, groups.existing, files, groups.most_on_a_rank


@pytest.mark.parametrize("most_per_rank", [1, 2])
def test_groups_come_and_go_with_the_plans_and_no_rank_is_in_more_than_it_may(most_per_rank):
    by_rank = run_ranks(4, groups_over_time, (most_per_rank, 25), timeout_s=30.0)
    for held, existing, files, most in by_rank:
        assert all(mine <= max(most_per_rank, needed) for mine, needed in held)
        assert existing == by_rank[0][1], "all ranks know the same groups, in one order"
        assert max(files[5:]) <= max(files[:5]) + 12, "a group that goes closes its connections"
        assert most == most_per_rank + 1
    assert max(mine for mine, _ in by_rank[0][0]) >= most_per_rank, "rank 0 has two groups to be in"


@pytest.mark.slow
def test_groups_that_come_and_go_a_thousand_times_leave_no_file_open():
    for _, _, files, _ in run_ranks(4, groups_over_time, (1, 1000), timeout_s=120.0):
        assert max(files[500:]) <= max(files[:500])


def test_a_block_that_no_plan_may_name_is_no_group():
    assert run_ranks(3, ask_for_prepared, ((1, 2),), timeout_s=15.0) == [True] * 3


def ask_for_prepared(world, ranks):
    recorder = Recorder(rank=world.rank, world_size=world.size, clock=clock_for(world.device))
    groups = ProcessGroups(world, (1, 2), recorder, most_per_rank=1)
    groups.prepare([ranks])
    try:
        groups.of(ranks)
    except KeyError:
        return True
    return False
