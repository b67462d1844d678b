"""Tiles of one clip that several ranks encode: each its own part, and in the end all of them."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from arachne.runtime.attention_split import split_sizes
from arachne.runtime.collectives import Parcel, start_exchange
from arachne.runtime.process_groups import RankGroup


def tiles_of_member(num_tiles: int, group_size: int, member: int) -> range:
    """Which tiles a member encodes: neighbours, as many as others or one less; perhaps none."""
    sizes = split_sizes(num_tiles, group_size)
    first = sum(sizes[:member])
    return range(first, first + sizes[member])


def all_tiles(
    group: RankGroup,
    shapes: Sequence[tuple[int, ...]],
    encode: Callable[[int], Tensor],
    device: torch.device,
) -> list[Tensor]:
    """Every tile, on every member; all of them call it at the same place in their order.

    The members meet once, after each has encoded its part.

    Args:
        group: The launch's ranks.
        shapes: Of every tile, float32.
        encode: Makes one; raises nothing, since the others wait for it.
        device: Where the group's messages travel.
    """
    parts = [tiles_of_member(len(shapes), group.size, member) for member in range(group.size)]
    mine = {
        index: encode(index).to(device, torch.float32).contiguous() for index in parts[group.index]
    }
    others = [member for member in range(group.size) if member != group.index]
    tiles = [
        mine[index] if index in mine else torch.empty(shape, device=device)
        for index, shape in enumerate(shapes)
    ]
    transfer = start_exchange(
        group,
        sent=[
            Parcel(member=member, content=f"tile {index}", tensor=tile)
            for member in others
            for index, tile in mine.items()
        ],
        received=[
            Parcel(member=member, content=f"tile {index}", tensor=tiles[index])
            for member in others
            for index in parts[member]
        ],
        of_all_members=(group.size - 1) * sum(map(_num_elements, shapes)),
        dtype=torch.float32,
    )
    transfer.wait()
    return tiles


def _num_elements(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()
