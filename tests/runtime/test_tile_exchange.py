"""Ranks that share a clip's tiles all have every tile in the end."""

import pytest
import torch

from arachne.runtime.launcher import run_ranks
from arachne.runtime.tile_exchange import all_tiles, tiles_of_member
from tests.runtime.rank_groups import open_groups

SHAPES = [(2, 3), (2, 1), (2, 3), (4,), (1, 2)]


def tile_of(index: int) -> torch.Tensor:
    return torch.full(SHAPES[index], 10.0 + index)


def test_every_tile_has_one_member_and_shares_differ_by_one_at_most():
    for num_tiles in range(8):
        for size in (1, 2, 3, 5):
            parts = [tiles_of_member(num_tiles, size, member) for member in range(size)]
            assert [index for part in parts for index in part] == list(range(num_tiles))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


def shared(world, num_tiles):
    """Beside a message of a handoff that is on its way in the same group."""
    recorder, groups = open_groups(world)
    recorder.keeps_ledger = True
    late = torch.empty(1)
    posted = torch.distributed.irecv(late, src=1, tag=0) if world.rank == 0 else None
    made: list[int] = []

    def encode(index: int) -> torch.Tensor:
        made.append(index)
        return tile_of(index)

    with recorder.launch(2):
        tiles = all_tiles(groups.world, SHAPES[:num_tiles], encode, world.device)
    if world.rank == 1:
        torch.distributed.isend(torch.tensor([7.0]), dst=0, tag=0).wait()
    if posted is not None:
        posted.wait()
        assert late.item() == 7.0, "a tile was taken for another message"
    return tiles, made, recorder.ledger


@pytest.mark.distributed
@pytest.mark.parametrize(("world_size", "num_tiles"), [(2, 5), (3, 5), (3, 2)])
def test_all_members_have_all_tiles_and_each_encoded_its_own(world_size, num_tiles):
    by_rank = run_ranks(world_size, shared, (num_tiles,), timeout_s=20.0)
    for rank, (tiles, made, ledger) in enumerate(by_rank):
        assert made == list(tiles_of_member(num_tiles, world_size, rank))
        assert all(torch.equal(tile, tile_of(index)) for index, tile in enumerate(tiles))
        (record,) = ledger
        assert (record.launch, record.operation) == (2, "exchange")
        assert record.ranks == tuple(range(world_size))
        num_elements = sum(tile.numel() for tile in tiles)
        assert record.num_elements == (world_size - 1) * num_elements
