"""Ulysses sequence parallelism, per call: trade a shard of the sequence for a shard of the heads.

`install` hooks a model once; inside `with sequence_parallel(group)` its forward and backward run on
that group's ranks together, each holding some of the tokens. Lengths and heads need not divide.
Every rank must use `loss / P`: all adjoints are true ones, so the sum of the ranks' gradients is
the gradient of one process. Source of the method: DeepSpeed Ulysses (arXiv 2309.14509).

Shape suffixes:
  B batch   S full sequence   L local sequence   N heads   M local heads   H head size
  P group size   _flat one dimension, pieces in member order
"""

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from arachne.core.sequence_layout import GatherOutput, SequenceLayout, SplitInput, SplitOutput
from arachne.runtime import collectives
from arachne.runtime.process_groups import RankGroup


def split_sizes(total: int, num_parts: int) -> tuple[int, ...]:
    """Sizes that differ by at most one, the larger first; zero where there is less than a part."""
    quotient, rest = divmod(total, num_parts)
    return tuple(quotient + (part < rest) for part in range(num_parts))


@dataclass(slots=True)
class _ActiveLaunch:
    """The launch that this process works on: its group, and how its streams were cut."""

    group: RankGroup
    lengths: dict[str, tuple[int, ...]] = field(default_factory=dict)
    is_in_self_attention: bool = False
    has_exchanged: bool = False
    streams: tuple[str, ...] = ()

    @property
    def joint_lengths(self) -> tuple[int, ...]:
        """Tokens of each member in self-attention, all streams together."""
        return tuple(map(sum, zip(*(self.lengths[s] for s in self.streams), strict=True)))


# A process works on one launch at a time. Backward may run on a thread of autograd's own, so this
# is a plain global and no context variable.
_active: _ActiveLaunch | None = None


@contextmanager
def sequence_parallel(group: RankGroup) -> Iterator[None]:
    """Forward and backward inside run on all ranks of `group` together."""
    global _active
    assert _active is None, "launches do not nest"
    _active = _ActiveLaunch(group=group) if group.size > 1 else None
    try:
        yield
    finally:
        _active = None


def install(module: nn.Module, layout: SequenceLayout) -> None:
    """Hook a model so that `sequence_parallel` can split it; outside of it nothing changes.

    Raises:
        KeyError: The layout names a module that the model does not have.
    """
    modules = dict(module.named_modules())
    for split in layout.split_inputs:
        hook = _input_splitter(split, modules[split.module])
        modules[split.module].register_forward_pre_hook(hook, with_kwargs=True)
    for output in layout.split_outputs:
        modules[output.module].register_forward_hook(_output_splitter(output))
    modules[layout.gather.module].register_forward_hook(_output_gatherer(layout.gather))
    attention = [m for name, m in modules.items() if re.fullmatch(layout.self_attention, name)]
    assert attention, f"no module is named like {layout.self_attention!r}"
    for layer in attention:
        layer.register_forward_pre_hook(_enter_self_attention(layout.streams))
        layer.register_forward_hook(_check_exchanged)
        layer.register_forward_hook(_leave_self_attention, always_call=True)
    nn.functional.scaled_dot_product_attention = _attention


def _input_splitter(split: SplitInput, module: nn.Module) -> Callable[..., Any]:
    names = [n for n in inspect.signature(module.forward).parameters if n != "self"]
    position = names.index(split.argument)

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _active is None:
            return None
        if split.argument in kwargs:
            kwargs[split.argument] = _shard(kwargs[split.argument], split.dim, split.stream)
            return args, kwargs
        mine = _shard(args[position], split.dim, split.stream)
        return (*args[:position], mine, *args[position + 1 :]), kwargs

    return hook


def _output_splitter(split: SplitOutput) -> Callable[..., Any]:
    def hook(_: nn.Module, _args: Any, output: Any) -> Any:
        if _active is None:
            return output
        if isinstance(output, Tensor):
            return _shard(output, split.dims[0], split.stream)
        pairs = zip(output, split.dims, strict=True)
        return tuple(_shard(tensor, dim, split.stream) for tensor, dim in pairs)

    return hook


def _output_gatherer(gather: GatherOutput) -> Callable[..., Any]:
    def hook(_: nn.Module, _args: Any, output: Tensor) -> Tensor:
        if _active is None:
            return output
        lengths = _active.lengths[gather.stream]
        return _Gather.apply(output, gather.dim, lengths, _active.group)

    return hook


def _enter_self_attention(streams: tuple[str, ...]) -> Callable[..., None]:
    def hook(_: nn.Module, _args: Any) -> None:
        if _active is not None:
            _active.is_in_self_attention = True
            _active.has_exchanged = False
            _active.streams = streams

    return hook


def _check_exchanged(_: nn.Module, _args: Any, _output: Any) -> None:
    """Attention to a shard alone gives a wrong result without an error: refuse it."""
    if _active is not None and not _active.has_exchanged:
        raise NotImplementedError(
            "self-attention did not call torch's scaled_dot_product_attention, so it saw only this "
            "rank's tokens; use the model's native attention backend"
        )


def _leave_self_attention(_: nn.Module, _args: Any, _output: Any) -> None:
    if _active is not None:
        _active.is_in_self_attention = False


def _shard(tensor: Tensor, dim: int, stream: str) -> Tensor:
    assert _active is not None
    sizes = split_sizes(tensor.shape[dim], _active.group.size)
    _active.lengths[stream] = sizes
    index = _active.group.index
    return tensor.narrow(dim, sum(sizes[:index]), sizes[index])


class _Gather(torch.autograd.Function):
    """All members' pieces along one dimension; its adjoint sums and scatters."""

    @staticmethod
    def forward(
        ctx: Any, mine: Tensor, dim: int, sizes: tuple[int, ...], group: RankGroup
    ) -> Tensor:
        ctx.dim, ctx.sizes, ctx.group = dim, sizes, group
        longest = max(sizes)
        moved = mine.movedim(dim, 0)
        padded = moved.new_zeros((longest, *moved.shape[1:]))
        padded[: moved.shape[0]] = moved
        gathered = moved.new_empty((group.size * longest, *moved.shape[1:]))
        collectives.all_gather(gathered, padded, group)
        pieces = [gathered[i * longest : i * longest + size] for i, size in enumerate(sizes)]
        return torch.cat(pieces).movedim(0, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        dim, sizes, group = ctx.dim, ctx.sizes, ctx.group
        longest = max(sizes)
        moved = gradients[0].movedim(dim, 0)
        padded = moved.new_zeros((group.size * longest, *moved.shape[1:]))
        for i, piece in enumerate(moved.split(sizes)):
            padded[i * longest : i * longest + sizes[i]] = piece
        mine = moved.new_empty((longest, *moved.shape[1:]))
        collectives.reduce_scatter(mine, padded, group)
        return mine[: sizes[group.index]].movedim(0, dim), None, None, None


@dataclass(frozen=True, slots=True)
class _Exchange:
    """How a launch trades tokens for heads: what each member holds before and after."""

    lengths: tuple[int, ...]
    heads: tuple[int, ...]
    group: RankGroup

    def to_heads(self, tensors_BLNH: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Each [B, L, N, H] becomes [B, S, M, H], all of them in one all-to-all."""
        B, _, _, H = tensors_BLNH[0].shape
        count, M = len(tensors_BLNH), self.heads[self.group.index]
        stacked_TBLNH = torch.stack(tensors_BLNH)
        sent = [piece.reshape(-1) for piece in stacked_TBLNH.split(self.heads, dim=3)]
        sizes = [count * B * length * M * H for length in self.lengths]
        pieces = self._trade(sent, sizes, count * B * sum(self.lengths) * sum(self.heads) * H)
        shaped = [
            piece.view(count, B, length, M, H)
            for piece, length in zip(pieces, self.lengths, strict=True)
        ]
        return torch.cat(shaped, dim=2).unbind(0)

    def to_sequence(self, tensors_BSMH: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The inverse: each [B, S, M, H] becomes [B, L, N, H]."""
        B, _, _, H = tensors_BSMH[0].shape
        count, L = len(tensors_BSMH), self.lengths[self.group.index]
        stacked_TBSMH = torch.stack(tensors_BSMH)
        sent = [piece.reshape(-1) for piece in stacked_TBSMH.split(self.lengths, dim=2)]
        sizes = [count * B * L * heads * H for heads in self.heads]
        pieces = self._trade(sent, sizes, count * B * sum(self.lengths) * sum(self.heads) * H)
        shaped = [
            piece.view(count, B, L, heads, H)
            for piece, heads in zip(pieces, self.heads, strict=True)
        ]
        return torch.cat(shaped, dim=3).unbind(0)

    def _trade(
        self, sent: list[Tensor], received_sizes: list[int], num_elements: int
    ) -> tuple[Tensor, ...]:
        sent_flat = torch.cat(sent)
        received_flat = sent_flat.new_empty(sum(received_sizes))
        sizes = collectives.Sizes(
            received=received_sizes,
            sent=[piece.numel() for piece in sent],
            of_all_members=num_elements,
        )
        collectives.all_to_all(received_flat, sent_flat, sizes, self.group)
        return received_flat.split(received_sizes)


class _ToHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exchange: _Exchange, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.exchange = exchange
        return exchange.to_heads(tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *ctx.exchange.to_sequence(gradients))


class _ToSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exchange: _Exchange, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.exchange = exchange
        return exchange.to_sequence(tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *ctx.exchange.to_heads(gradients))


_local_attention = nn.functional.scaled_dot_product_attention


def _attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`scaled_dot_product_attention` on [B, N, L, H]: over the whole sequence of the launch."""
    if _active is None or not _active.is_in_self_attention:
        return _local_attention(query, key, value, *args, **kwargs)
    mask, *rest = args or (kwargs.pop("attn_mask", None),)
    if mask is not None:
        raise NotImplementedError("sequence parallelism does not take attention masks yet")
    _active.has_exchanged = True
    lengths = _active.joint_lengths
    heads = split_sizes(query.shape[1], _active.group.size)
    exchange = _Exchange(lengths=lengths, heads=heads, group=_active.group)
    local_BLNH = (query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
    q, k, v = (t.transpose(1, 2) for t in _ToHeads.apply(exchange, *local_BLNH))
    # A member without a head computes nothing but has to take part in the backward exchanges.
    mixed = _local_attention(q, k, v, None, *rest, **kwargs) if q.shape[1] else (q + k + v) * 0
    (out_BLNH,) = _ToSequence.apply(exchange, mixed.transpose(1, 2))
    return out_BLNH.transpose(1, 2)
