"""Flat buffers of parameters and gradients, and which rank updates what of them.

Per bucket there is one flat buffer of parameters (the model's parameters are views of it) and one
of gradients. Of an even bucket every rank owns an equal stretch, wherever parameters begin and end;
a bucket with an owner belongs to one rank with every parameter in it whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor, nn

from arachne.runtime import collectives
from arachne.runtime.collectives import Transfer
from arachne.runtime.gradient_buffers import (
    GradientBuffer,
    GradientStorage,
    gradient_buffer,
    wide_dtype,
)
from arachne.runtime.process_groups import RankGroup

_BUCKET_BYTES = 256 * 2**20

Named = tuple[str, nn.Parameter]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Elements of one parameter inside a section: [low, high) there, from `offset` on in it."""

    name: str
    low: int
    high: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One tensor that the optimizer updates, on the rank that owns it.

    Attributes:
        master: The weights, float32 or wider; flat in an even bucket, else of the parameter's
            shape (one dimension for a scalar).
        gradient: Of the same shape, reduced.
        average: The moving average of the weights, of the same shape; None without one.
        stretches: What parameters it holds, as elements of the flattened tensor.
    """

    master: Tensor
    gradient: Tensor
    average: Tensor | None
    stretches: tuple[Stretch, ...]


class Bucket:
    """Parameters of one type that are reduced, updated by one rule, and shared together.

    Args:
        named: The parameters in their order in the buffer.
        owner: Member of the group that owns all of them; None for equal stretches.
    """

    def __init__(
        self,
        named: Sequence[Named],
        group: RankGroup,
        *,
        owner: int | None,
        gradients: GradientStorage,
        has_average: bool,
    ) -> None:
        self.group = group
        self.owner = owner
        first = named[0][1]
        total = sum(parameter.numel() for _, parameter in named)
        stretch = -(-total // group.size)
        padded = stretch * group.size if owner is None else total
        self.flat = torch.zeros(padded, dtype=first.dtype, device=first.device)
        self.gradients: GradientBuffer = gradient_buffer(self.flat, gradients)
        self.places: list[tuple[str, nn.Parameter, int]] = []
        offset = 0
        for name, parameter in named:
            end = offset + parameter.numel()
            self.flat[offset:end] = parameter.data.reshape(-1)
            parameter.data = self.flat[offset:end].view(parameter.shape)
            self.gradients.receive(parameter, offset)
            self.places.append((name, parameter, offset))
            offset = end
        if owner is None:
            self._start, stop = group.index * stretch, (group.index + 1) * stretch
        else:
            self._start, stop = 0, total if owner == group.index else 0
        mine = self.flat[self._start : stop]
        self._master = mine.to(wide_dtype(first.dtype), copy=True)
        self._average = self._master.clone() if has_average else None
        self.gradient_shard = torch.zeros_like(self._master)
        """This rank's part of the sum over all ranks, once it was reduced."""
        self.sections: tuple[Section, ...] = self._sections(stop)

    def start_reducing(self) -> Transfer:
        """Sum the gradients of all ranks; whoever owns elements keeps their sums."""
        summed = self.gradients.summed()
        if self.owner is None:
            return collectives.start_reduce_scatter(self.gradient_shard, summed, self.group)
        transfer = collectives.start_reduce(summed, self.group, root=self.owner)
        if self.owner != self.group.index:
            return transfer
        return replace(transfer, finish=lambda: self.gradient_shard.copy_(summed))

    def start_sharing(self, *, averages: bool) -> Transfer:
        """Give every rank the weights of all owners, or their averages."""
        owned = self._average if averages else self._master
        assert owned is not None, "there is no average of the weights"
        mine = owned.to(self.flat.dtype)
        if self.owner is None:
            return collectives.start_all_gather(self.flat, mine, self.group)
        if self.owner == self.group.index:
            self.flat.copy_(mine)
        return collectives.start_broadcast(self.flat, self.group, root=self.owner)

    def _sections(self, stop: int) -> tuple[Section, ...]:
        if self._start == stop:
            return ()
        if self.owner is None:
            return (self._section(self._start, stop, (stop - self._start,)),)
        return tuple(
            self._section(offset, offset + parameter.numel(), tuple(parameter.shape) or (1,))
            for _, parameter, offset in self.places
        )

    def _section(self, start: int, stop: int, shape: tuple[int, ...]) -> Section:
        """Elements [start, stop) of the buffer as one tensor."""
        assert prod(shape) == stop - start

        def part(owned: Tensor) -> Tensor:
            return owned[start - self._start : stop - self._start].view(shape)

        return Section(
            master=part(self._master).requires_grad_(),
            gradient=part(self.gradient_shard),
            average=None if self._average is None else part(self._average),
            stretches=tuple(
                Stretch(name=name, low=low - start, high=high - start, offset=low - offset)
                for name, parameter, offset in self.places
                for low, high in [(max(start, offset), min(stop, offset + parameter.numel()))]
                if low < high
            ),
        )


def even_parts(named: Sequence[Named]) -> list[list[Named]]:
    """Parameters in order, cut into runs of one type and bounded size."""
    parts: list[list[Named]] = []
    size = 0
    for name, parameter in named:
        bytes_more = parameter.numel() * parameter.element_size()
        is_alike = bool(parts) and parts[-1][0][1].dtype == parameter.dtype
        if not is_alike or size + bytes_more > _BUCKET_BYTES:
            parts.append([])
            size = 0
        parts[-1].append((name, parameter))
        size += bytes_more
    return parts


def owners(named: Sequence[Named], num_members: int) -> list[int]:
    """For each parameter the member that owns it: the largest first, to the one with least so far.

    The same on every rank. No member has more than a mean share and one parameter.
    """
    loads = [0] * num_members
    found = [0] * len(named)
    for index in sorted(range(len(named)), key=lambda index: (-named[index][1].numel(), index)):
        owner = loads.index(min(loads))
        loads[owner] += named[index][1].numel()
        found[index] = owner
    return found
