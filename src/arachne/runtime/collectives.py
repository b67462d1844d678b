"""The collectives of a step; each one is recorded with its group.

Shape suffixes:
  P group size
All are issued in the order of the program, by one thread, on one stream; on CPU they block. A group
of one rank meets nobody.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

from arachne.runtime.process_groups import RankGroup

# torch 2.13 renames two calls and warns about the old names; 2.6 has only those.
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Elements of an uneven all-to-all.

    Attributes:
        received: What arrives from each member.
        sent: What goes to each member.
        of_all_members: What the members hold together; equal on all of them.
    """

    received: Sequence[int]
    sent: Sequence[int]
    of_all_members: int


def all_to_all(received: Tensor, sent: Tensor, sizes: Sizes, group: RankGroup) -> None:
    """Send piece i of the flat `sent` to member i; `received` holds the pieces in member order."""
    with _recorded("all_to_all", sizes.of_all_members, sent, group):
        if group.handle is None:
            received.copy_(sent)
        else:
            dist.all_to_all_single(
                received, sent, list(sizes.received), list(sizes.sent), group=group.handle
            )


def all_gather(gathered: Tensor, mine: Tensor, group: RankGroup) -> None:
    """Fill `gathered` with everybody's `mine`, in member order; all of one size."""
    with _recorded("all_gather", gathered.numel(), gathered, group):
        if group.handle is None:
            gathered.copy_(mine)
        else:
            _all_gather(gathered, mine.contiguous(), group=group.handle)


def reduce_scatter(mine: Tensor, full: Tensor, group: RankGroup) -> None:
    """Sum `full` over the group; member i keeps piece i of P equal pieces in `mine`."""
    with _recorded("reduce_scatter", full.numel(), full, group):
        if group.handle is None:
            mine.copy_(full)
        else:
            _reduce_scatter(mine, full.contiguous(), group=group.handle)


def all_reduce_sum(values: Tensor, group: RankGroup) -> None:
    """Sum `values` over the group, in place."""
    _all_reduce(values, group, dist.ReduceOp.SUM, "all_reduce_sum")


def all_reduce_max(values: Tensor, group: RankGroup) -> None:
    """The largest of `values` over the group, element by element, in place."""
    _all_reduce(values, group, dist.ReduceOp.MAX, "all_reduce_max")


def _all_reduce(values: Tensor, group: RankGroup, op: dist.ReduceOp.RedOpType, name: str) -> None:
    assert values.is_contiguous(), "gloo sums strided tensors wrongly, without an error"
    with _recorded(name, values.numel(), values, group):
        if group.handle is not None:
            dist.all_reduce(values, op=op, group=group.handle)


def _recorded(
    operation: str, num_elements: int, tensor: Tensor, group: RankGroup
) -> AbstractContextManager[None]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return group.recorder.collective(operation, group.ranks, num_elements, dtype)
