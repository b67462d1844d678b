"""The collectives of a step; each one is recorded with its group.

Shape suffixes:
  P group size
All are issued in the order of the program, by one thread, on one stream; on CPU they block, but for
the exchange of parcels, which is waited for where its result is used. A group of one rank meets
nobody.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from arachne.runtime.process_groups import RankGroup
from arachne.runtime.recorder import Message

# torch 2.13 renames two calls and warns about the old names; 2.6 has only those.
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

_SWAP_TAG = 2**30
"""Above the tags of handoffs, which may be on their way in the same group."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """A tensor for one member of a group, or the place for one that it sends.

    Attributes:
        member: The other member, by its index in the group.
        content: What it is; sender and receiver call it the same.
        tensor: Contiguous; not to be touched until the exchange was waited for.
    """

    member: int
    content: str
    tensor: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """An exchange of parcels under way.

    Attributes:
        group: Who exchanges.
        works: What torch is at.
        parcels: Kept alive until they have arrived.
    """

    group: RankGroup
    works: Sequence[dist.Work]
    parcels: Sequence[Parcel]

    def wait(self) -> None:
        """Until everything was sent and has arrived; on a GPU its stream waits, not the host."""
        with self.group.recorder.meeting():
            for work in self.works:
                work.wait()


def start_exchange(
    group: RankGroup,
    sent: Sequence[Parcel],
    received: Sequence[Parcel],
    *,
    of_all_members: int,
    dtype: torch.dtype,
) -> Transfer:
    """Send parcels and receive others; all members call it at the same place in their order.

    Two members agree on the order and the sizes of the parcels between them; empty ones do not
    travel. `of_all_members` are the elements that travel in all, equal on all members. On GPUs a
    batch of sends uses the group's own communicator; single sends would each create another.
    """
    if group.gate is not None:
        group.gate()
    sent = [parcel for parcel in sent if parcel.tensor.numel()]
    received = [parcel for parcel in received if parcel.tensor.numel()]
    me = group.ranks[group.index]
    messages: list[Message] = []
    operations: list[dist.P2POp] = []
    for parcel in (*sent, *received):
        is_sent = len(operations) < len(sent)
        peer = group.ranks[parcel.member]
        source, target = (me, peer) if is_sent else (peer, me)
        messages.append(
            Message(
                source=source,
                target=target,
                content=parcel.content,
                num_elements=parcel.tensor.numel(),
            )
        )
        operation = dist.isend if is_sent else dist.irecv
        operations.append(dist.P2POp(operation, parcel.tensor, peer, group.handle))
    group.recorder.issued(
        "exchange", group.ranks, of_all_members, _name(dtype), messages=tuple(messages)
    )
    works = dist.batch_isend_irecv(operations) if operations else []
    return Transfer(group=group, works=works, parcels=(*sent, *received))


def all_gather(gathered: Tensor, mine: Tensor, group: RankGroup) -> None:
    """Fill `gathered` with everybody's `mine`, in member order; all of one size."""
    with _recorded("all_gather", gathered.numel(), gathered, group):
        if group.handle is None:
            gathered.copy_(mine)
        elif gathered.device.type == "cpu":
            _gather_on_host(gathered, mine, group)
        else:
            _all_gather(gathered, mine.contiguous(), group=group.handle)


def reduce_scatter(mine: Tensor, full: Tensor, group: RankGroup) -> None:
    """Sum `full` over the group; member i keeps piece i of P equal pieces in `mine`.

    On CPU every element is summed in the order of the members, wherever it lies.
    """
    with _recorded("reduce_scatter", full.numel(), full, group):
        if group.handle is None:
            mine.copy_(full)
        elif full.device.type == "cpu":
            _sum_on_host(mine, full.contiguous(), group)
        else:
            _reduce_scatter(mine, full.contiguous(), group=group.handle)


def reduce(values: Tensor, group: RankGroup, *, root: int) -> None:
    """Sum `values` over the group into those of member `root`; the others' are spoilt."""
    assert values.is_contiguous(), "gloo sums strided tensors wrongly, without an error"
    with _recorded("reduce", values.numel(), values, group):
        if group.handle is not None:
            dist.reduce(values, dst=group.ranks[root], group=group.handle)


def broadcast(values: Tensor, group: RankGroup, *, root: int = 0) -> None:
    """Give every member the `values` of member `root`, in place."""
    assert values.is_contiguous(), "gloo sends strided tensors wrongly, without an error"
    with _recorded("broadcast", values.numel(), values, group):
        if group.handle is not None:
            dist.broadcast(values, src=group.ranks[root], group=group.handle)


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


def _gather_on_host(gathered: Tensor, mine: Tensor, group: RankGroup) -> None:
    pieces = gathered.view(group.size, *mine.shape).unbind()
    pieces[group.index].copy_(mine)
    _swap([pieces[group.index]] * group.size, pieces, group)


def _sum_on_host(mine: Tensor, full: Tensor, group: RankGroup) -> None:
    pieces = full.view(group.size, *mine.shape).unbind()
    arrived = [
        piece if i == group.index else torch.empty_like(mine) for i, piece in enumerate(pieces)
    ]
    _swap(pieces, arrived, group)
    torch.add(arrived[0], arrived[1], out=mine)
    for piece in arrived[2:]:
        mine.add_(piece)


def _swap(sent: Sequence[Tensor], received: Sequence[Tensor], group: RankGroup) -> None:
    """Piece i goes to member i, and what it sends arrives in place i; all of one size.

    Straight from and to where the pieces lie: gloo's own reduce-scatter and all-gather copy them
    once more, and took twice as long for 18 MB on two and on three ranks.
    """
    others = [i for i in range(group.size) if i != group.index and received[i].numel()]
    operations = [
        dist.P2POp(operation, pieces[i], group.ranks[i], group.handle, tag=_SWAP_TAG)
        for operation, pieces in ((dist.irecv, received), (dist.isend, sent))
        for i in others
    ]
    for work in dist.batch_isend_irecv(operations) if operations else []:
        work.wait()


def _recorded(
    operation: str, num_elements: int, tensor: Tensor, group: RankGroup
) -> AbstractContextManager[None]:
    if group.gate is not None:
        group.gate()
    return group.recorder.collective(operation, group.ranks, num_elements, _name(tensor.dtype))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
