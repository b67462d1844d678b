"""Parcels between the members of a group."""

import pytest
import torch

from arachne.runtime.collectives import Parcel, all_gather, reduce_scatter, start_exchange
from arachne.runtime.launcher import run_ranks
from arachne.runtime.recorder import Message
from tests.runtime.rank_groups import open_groups

pytestmark = pytest.mark.distributed


def exchanged(world):
    """Each rank sends its number and twenty more to the next one, and nothing to the one before."""
    recorder, groups = open_groups(world)
    recorder.keeps_ledger = True
    group = groups.world
    after, before = (world.rank + 1) % 3, (world.rank - 1) % 3
    number, more = torch.empty(2), torch.empty(1)
    with recorder.launch(4):
        transfer = start_exchange(
            group,
            [
                Parcel(member=after, content="number", tensor=torch.full((2,), float(world.rank))),
                Parcel(member=after, content="more", tensor=torch.tensor([world.rank + 20.0])),
                Parcel(member=before, content="nothing", tensor=torch.empty(0)),
            ],
            [
                Parcel(member=before, content="number", tensor=number),
                Parcel(member=before, content="more", tensor=more),
                Parcel(member=after, content="nothing", tensor=torch.empty(3, 0)),
            ],
            of_all_members=9,
            dtype=torch.float32,
        )
        transfer.wait()
    return [*number.tolist(), *more.tolist()], recorder.ledger


def test_parcels_arrive_in_order_and_both_ends_record_them():
    outcomes = run_ranks(3, exchanged, timeout_s=15.0)
    for rank, (arrived, (record,)) in enumerate(outcomes):
        before, after = (rank - 1) % 3, (rank + 1) % 3
        assert arrived == [before, before, before + 20]
        assert (record.launch, record.ranks, record.operation) == (4, (0, 1, 2), "exchange")
        assert (record.num_elements, record.dtype) == (9, "float32")
        assert record.messages == tuple(
            Message(source=source, target=target, content=content, num_elements=size)
            for source, target in ((rank, after), (before, rank))
            for content, size in (("number", 2), ("more", 1))
        )


def exchanged_nothing(world):
    recorder, groups = open_groups(world)
    recorder.keeps_ledger = True
    empty = Parcel(member=1 - world.rank, content="nothing", tensor=torch.empty(0))
    start_exchange(groups.world, [empty], [empty], of_all_members=5, dtype=torch.bfloat16).wait()
    return [(r.num_elements, r.dtype, r.messages) for r in recorder.ledger]


def test_a_member_without_a_parcel_takes_part_in_the_exchange():
    assert run_ranks(2, exchanged_nothing, timeout_s=15.0) == [[(5, "bfloat16", ())]] * 2


def summed_and_gathered(world, dtype, width):
    """Of P pieces of `width` columns, beside a message under way in the same group."""
    _, groups = open_groups(world)
    everyone = groups.world
    late = torch.empty(1)
    if world.rank == 0:
        waiting = torch.distributed.irecv(late, src=1, tag=0)
    generator = torch.Generator().manual_seed(world.rank)
    full = torch.randn(2 * world.size, width, generator=generator, dtype=torch.float64).to(dtype)
    mine = torch.empty(2, width, dtype=dtype)
    reduce_scatter(mine, full, everyone)
    gathered = torch.empty_like(full)
    all_gather(gathered, mine, everyone)
    if world.rank == 0:
        waiting.wait()
    elif world.rank == 1:
        torch.distributed.isend(torch.tensor([7.0]), dst=0, tag=0).wait()
    return full, gathered, late.item() if world.rank == 0 else 7.0


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pieces_are_summed_in_the_order_of_the_members_and_come_back_whole(world_size, dtype):
    outcomes = run_ranks(world_size, summed_and_gathered, (dtype, 3), timeout_s=15.0)
    expected = outcomes[0][0].clone()
    for full, _, _ in outcomes[1:]:
        expected += full
    for _, gathered, late in outcomes:
        assert torch.equal(gathered, expected), "bit for bit"
        assert late == 7.0, "another message was taken for a piece"


def test_pieces_without_elements_meet_too():
    for _, gathered, _ in run_ranks(2, summed_and_gathered, (torch.float32, 0), timeout_s=15.0):
        assert gathered.shape == (4, 0)
