"""The collectives of a step; each one is recorded with its group.

Shape suffixes:
  P group size
All are issued in the order of the program, by one thread, on one stream; on CPU they block, but for
those whose names begin with `start`, which are waited for where their result is used. A group of
one rank meets nobody.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from arachne.runtime.process_groups import RankGroup
from arachne.runtime.recorder import Message

# torch 2.13 renames two calls and warns about the old names; 2.6 has only those.
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

_EXCHANGE_TAG = 2**30
"""Above the tags of handoffs, which may be on their way in the same group."""

_SWAP_TAG = _EXCHANGE_TAG + 1


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


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A collective under way, or an exchange of parcels.

    Members wait for what they started in the order in which they started it.

    Attributes:
        group: Who meets.
        works: What torch is at.
        kept: Kept alive until it has arrived.
        finish: What is left to do once all of it has arrived.
    """

    group: RankGroup
    works: Sequence[dist.Work] = ()
    kept: Sequence[Parcel | Tensor] = ()
    finish: Callable[[], object] = field(default=_nothing, repr=False)

    def wait(self) -> None:
        """Until everything was sent and has arrived; on a GPU its stream waits, not the host."""
        with self.group.recorder.meeting():
            for work in self.works:
                work.wait()
            self.finish()


MOST_UNDER_WAY = 2
"""Of a row of large collectives: one moves while the one before is made use of. Each holds buffers
of its own."""


def overlapped(started: Iterable[Transfer]) -> list[Transfer]:
    """Go through a row of collectives, each of which starts when it is asked for, with at most
    `MOST_UNDER_WAY` of them under way; those that are still under way at the end.
    """
    under_way: list[Transfer] = []
    for transfer in started:
        under_way.append(transfer)
        if len(under_way) == MOST_UNDER_WAY:
            under_way.pop(0).wait()
    return under_way


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
        operations.append(
            dist.P2POp(operation, parcel.tensor, peer, group.handle, tag=_EXCHANGE_TAG)
        )
    group.recorder.issued(
        "exchange", group.ranks, of_all_members, _name(dtype), messages=tuple(messages)
    )
    works = dist.batch_isend_irecv(operations) if operations else []
    return Transfer(group=group, works=works, kept=(*sent, *received))


def all_gather(gathered: Tensor, mine: Tensor, group: RankGroup) -> None:
    """Fill `gathered` with everybody's `mine`, in member order; all of one size."""
    start_all_gather(gathered, mine, group).wait()


def start_all_gather(gathered: Tensor, mine: Tensor, group: RankGroup) -> Transfer:
    """As `all_gather`; neither tensor is to be touched until it was waited for."""
    _issue("all_gather", gathered.numel(), gathered, group)
    if group.handle is None:
        gathered.copy_(mine)
        return Transfer(group=group)
    if gathered.device.type == "cpu":
        pieces = gathered.view(group.size, *mine.shape).unbind()
        pieces[group.index].copy_(mine)
        works = _swap([pieces[group.index]] * group.size, pieces, group)
        return Transfer(group=group, works=works, kept=pieces)
    mine = mine.contiguous()
    work = _all_gather(gathered, mine, group=group.handle, async_op=True)
    return Transfer(group=group, works=_works(work), kept=(gathered, mine))


def reduce_scatter(mine: Tensor, full: Tensor, group: RankGroup) -> None:
    """Sum `full` over the group; member i keeps piece i of P equal pieces in `mine`.

    On CPU every element is summed in the order of the members, wherever it lies.
    """
    start_reduce_scatter(mine, full, group).wait()


def start_reduce_scatter(mine: Tensor, full: Tensor, group: RankGroup) -> Transfer:
    """As `reduce_scatter`; neither tensor is to be touched until it was waited for."""
    _issue("reduce_scatter", full.numel(), full, group)
    if group.handle is None:
        mine.copy_(full)
        return Transfer(group=group)
    full = full.contiguous()
    if full.device.type != "cpu":
        work = _reduce_scatter(mine, full, group=group.handle, async_op=True)
        return Transfer(group=group, works=_works(work), kept=(mine, full))
    pieces = full.view(group.size, *mine.shape).unbind()
    arrived = [
        piece if i == group.index else torch.empty_like(mine) for i, piece in enumerate(pieces)
    ]

    def add() -> None:
        torch.add(arrived[0], arrived[1], out=mine)
        for piece in arrived[2:]:
            mine.add_(piece)

    return Transfer(group=group, works=_swap(pieces, arrived, group), kept=pieces, finish=add)


def start_reduce(values: Tensor, group: RankGroup, *, root: int) -> Transfer:
    """Sum `values` over the group into those of member `root`; the others' are spoilt."""
    assert values.is_contiguous(), "gloo sums strided tensors wrongly, without an error"
    _issue("reduce", values.numel(), values, group)
    if group.handle is None:
        return Transfer(group=group)
    work = dist.reduce(values, dst=group.ranks[root], group=group.handle, async_op=True)
    return Transfer(group=group, works=_works(work), kept=(values,))


def broadcast(values: Tensor, group: RankGroup, *, root: int = 0) -> None:
    """Give every member the `values` of member `root`, in place."""
    start_broadcast(values, group, root=root).wait()


def start_broadcast(values: Tensor, group: RankGroup, *, root: int) -> Transfer:
    """As `broadcast`; the tensor is not to be touched until it was waited for."""
    assert values.is_contiguous(), "gloo sends strided tensors wrongly, without an error"
    _issue("broadcast", values.numel(), values, group)
    if group.handle is None:
        return Transfer(group=group)
    work = dist.broadcast(values, src=group.ranks[root], group=group.handle, async_op=True)
    return Transfer(group=group, works=_works(work), kept=(values,))


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


def _swap(
    sent: Sequence[Tensor], received: Sequence[Tensor], group: RankGroup
) -> Sequence[dist.Work]:
    """Piece i goes to member i, and what it sends arrives in place i; all of one size.

    Straight from and to where the pieces lie: gloo's own reduce-scatter and all-gather copy them
    once more, and took twice as long for 18 MB on two and on three ranks. Several may be under way
    with one tag: between two ranks, messages of one tag arrive in the order in which they left.
    """
    others = [i for i in range(group.size) if i != group.index and received[i].numel()]
    operations = [
        dist.P2POp(operation, pieces[i], group.ranks[i], group.handle, tag=_SWAP_TAG)
        for operation, pieces in ((dist.irecv, received), (dist.isend, sent))
        for i in others
    ]
    return dist.batch_isend_irecv(operations) if operations else []


def _works(work: dist.Work | None) -> Sequence[dist.Work]:
    return [] if work is None else [work]


def _issue(operation: str, num_elements: int, tensor: Tensor, group: RankGroup) -> None:
    if group.gate is not None:
        group.gate()
    group.recorder.issued(operation, group.ranks, num_elements, _name(tensor.dtype))


@contextmanager
def _recorded(
    operation: str, num_elements: int, tensor: Tensor, group: RankGroup
) -> Iterator[None]:
    _issue(operation, num_elements, tensor, group)
    with group.recorder.meeting():
        yield


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
