"""Sequence parallelism, per call: a model hooked once runs on any launch's ranks, in its mode.

`install` hooks a model; inside `with sequence_parallel(group, mode)` its forward and backward run
on that group's ranks together, each holding some of the tokens. In self-attention every token meets
all tokens: by trading tokens for heads (`ulysses`), by letting keys and values travel in a ring
(`ring_attention`), or both; `attention_split` says who holds what. Lengths and heads need not
divide. Every rank must use `loss / P`: all adjoints are true ones, so the sum of the ranks'
gradients is the gradient of one process.

Shape suffixes:
  B batch   L tokens of this member   N heads   H head size   P group size
"""

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from arachne.core.errors import ConfigError
from arachne.core.launch_mode import WHOLE, LaunchMode
from arachne.core.sequence_layout import (
    GatherOutput,
    SequenceLayout,
    SplitCount,
    SplitInput,
    SplitOutput,
)
from arachne.core.units import percent_text
from arachne.runtime import collectives
from arachne.runtime.attention_kernels import KernelName
from arachne.runtime.attention_split import AttentionSplit, split_sizes
from arachne.runtime.local_attention import local_attention, self_attention
from arachne.runtime.process_groups import RankGroup
from arachne.runtime.recompute import make_recomputable
from arachne.runtime.split_attention import keys_by_member, split_attention


@dataclass(slots=True)
class _SelfAttention:
    """The self-attention module that runs just now."""

    streams: tuple[str, ...]
    kernel: KernelName
    has_exchanged: bool = False


@dataclass(slots=True)
class _ActiveLaunch:
    """The launch that this process works on: its group and mode, and how its streams were cut."""

    group: RankGroup
    mode: LaunchMode
    lengths: dict[str, tuple[int, ...]] = field(default_factory=dict)
    attending: _SelfAttention | None = None

    @property
    def joint_streams(self) -> list[tuple[int, ...]]:
        """Tokens of each member, by stream, in the self-attention that runs."""
        assert self.attending is not None
        lengths = [self.lengths[stream] for stream in self.attending.streams]
        for stream, sizes in zip(self.attending.streams, lengths, strict=True):
            # Models cut the streams apart with [:, :-n], which is not what it means where n is 0.
            if len(lengths) > 1 and not all(sizes):
                raise ConfigError(
                    f"stream {stream!r} has {sum(sizes)} tokens for {len(sizes)} ranks, and joint "
                    "attention needs one on each; lower planner.max_degree"
                )
        return lengths


# A process works on one launch at a time. Backward may run on a thread of autograd's own, and
# computes blocks again there, so this is a plain global and no context variable.
_active: _ActiveLaunch | None = None


def _split_launch() -> _ActiveLaunch | None:
    """The active launch, if it has several ranks."""
    return _active if _active is not None and _active.group.size > 1 else None


@contextmanager
def sequence_parallel(group: RankGroup, mode: LaunchMode = WHOLE) -> Iterator[None]:
    """Forward and backward inside run on all ranks of `group` together, in this mode.

    The backward belongs inside: it issues collectives, and computes blocks again.
    """
    global _active
    assert _active is None, "launches do not nest"
    _active = _ActiveLaunch(group=group, mode=mode)
    try:
        yield
    finally:
        _active = None


def install(
    module: nn.Module,
    layout: SequenceLayout,
    kernel: KernelName = "auto",
    compiler: str | Callable[..., Any] | None = None,
    *,
    inputs_on_host: bool = False,
) -> None:
    """Hook a model so that `sequence_parallel` can split it; outside of it nothing changes.

    Args:
        module: The model.
        layout: What is what in it.
        kernel: Computes attention in rings; without a ring, `local_attention` does.
        compiler: Backend of `torch.compile` for the blocks, such as "inductor"; None runs them as
            they are. Attention and exchanges stay outside of the graphs, which serve all blocks of
            a kind and all lengths.
        inputs_on_host: What recomputed blocks start from waits in the host's memory.

    Raises:
        KeyError: The layout names a module that the model does not have.
        ConfigError: The model draws random numbers, so that its loss would depend on the plan.
    """
    modules = dict(module.named_modules())
    for name, part in modules.items():
        if isinstance(part, nn.Dropout) and part.p > 0.0:
            raise ConfigError(
                f"the model's {name!r} drops {percent_text(part.p)} of its inputs; it must be 0"
            )
    for split in layout.split_inputs:
        hook = _input_splitter(split, modules[split.module])
        modules[split.module].register_forward_pre_hook(hook, with_kwargs=True)
    for output in layout.split_outputs:
        modules[output.module].register_forward_hook(_output_splitter(output))
    for count in layout.split_counts:  # after the inputs, whose hooks cut the stream
        for part in _named_like(count.modules, modules):
            part.register_forward_pre_hook(_count_splitter(count, part), with_kwargs=True)
    modules[layout.gather.module].register_forward_hook(_output_gatherer(layout.gather))
    outside: Any = _as_it_is if compiler is None else torch.compiler.disable
    # One object for all layers: a graph belongs to the hooks that it was traced with.
    enter = outside(_enter_self_attention(layout.streams, kernel))
    check, leave = outside(_check_exchanged), outside(_leave_self_attention)
    for layer in _named_like(layout.self_attention, modules):
        layer.register_forward_pre_hook(enter)
        layer.register_forward_hook(check)
        layer.register_forward_hook(leave, always_call=True)
    for index, block in enumerate(_named_like(layout.blocks, modules)):
        if compiler is not None:
            block.forward = torch.compile(block.forward, dynamic=True, backend=compiler)
        make_recomputable(block, _is_recomputed(index), keeps_on_host=inputs_on_host)
    nn.functional.scaled_dot_product_attention = outside(_attention)


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _named_like(pattern: str, modules: dict[str, nn.Module]) -> list[nn.Module]:
    found = [module for name, module in modules.items() if re.fullmatch(pattern, name)]
    assert found, f"no module is named like {pattern!r}"
    return found


def _is_recomputed(index: int) -> Callable[[], bool]:
    return lambda: _active is not None and index < _active.mode.recompute_layers


def _input_splitter(split: SplitInput, module: nn.Module) -> Callable[..., Any]:
    def mine(whole: Any, launch: _ActiveLaunch) -> Any:
        return _sharded(whole, split.dim, split.stream, launch)

    return _argument_changer(module, split.argument, mine)


def _count_splitter(split: SplitCount, module: nn.Module) -> Callable[..., Any]:
    def mine(count: int, launch: _ActiveLaunch) -> int:
        sizes, index = launch.lengths[split.stream], launch.group.index
        return min(max(count - sum(sizes[:index]), 0), sizes[index])

    return _argument_changer(module, split.argument, mine)


def _argument_changer(
    module: nn.Module, argument: str, mine: Callable[[Any, _ActiveLaunch], Any]
) -> Callable[..., Any]:
    """A hook that gives a module, on split launches, `mine` of an argument that is not None."""
    names = [n for n in inspect.signature(module.forward).parameters if n != "self"]
    position = names.index(argument)

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        launch = _split_launch()
        if launch is None:
            return None
        if position < len(args):
            return (*args[:position], mine(args[position], launch), *args[position + 1 :]), kwargs
        if kwargs.get(argument) is not None:
            kwargs[argument] = mine(kwargs[argument], launch)
        return args, kwargs

    return hook


def _sharded(whole: Any, dim: int, stream: str, launch: _ActiveLaunch) -> Any:
    if isinstance(whole, Tensor):
        return _shard(whole, dim, stream, launch)
    return tuple(_shard(tensor, dim, stream, launch) for tensor in whole)


def _output_splitter(split: SplitOutput) -> Callable[..., Any]:
    def hook(_: nn.Module, _args: Any, output: Any) -> Any:
        launch = _split_launch()
        if launch is None:
            return output
        if isinstance(output, Tensor):
            return _shard(output, split.dims[0], split.stream, launch)
        pairs = zip(output, split.dims, strict=True)
        return tuple(_shard(tensor, dim, split.stream, launch) for tensor, dim in pairs)

    return hook


def _output_gatherer(gather: GatherOutput) -> Callable[..., Any]:
    def hook(_: nn.Module, _args: Any, output: Tensor) -> Tensor:
        launch = _split_launch()
        if launch is None:
            return output
        return _Gather.apply(output, gather.dim, launch.lengths[gather.stream], launch.group)

    return hook


def _enter_self_attention(streams: tuple[str, ...], kernel: KernelName) -> Callable[..., None]:
    def hook(_: nn.Module, _args: Any) -> None:
        launch = _split_launch()
        if launch is not None:
            launch.attending = _SelfAttention(streams=streams, kernel=kernel)

    return hook


def _check_exchanged(_: nn.Module, _args: Any, _output: Any) -> None:
    """Attention to a shard alone gives a wrong result without an error: refuse it."""
    launch = _split_launch()
    if launch is not None and launch.attending and not launch.attending.has_exchanged:
        raise NotImplementedError(
            "self-attention did not call torch's scaled_dot_product_attention, so it saw only this "
            "rank's tokens; use the model's native attention backend"
        )


def _leave_self_attention(_: nn.Module, _args: Any, _output: Any) -> None:
    if _active is not None:
        _active.attending = None


def _shard(tensor: Tensor, dim: int, stream: str, launch: _ActiveLaunch) -> Tensor:
    sizes = split_sizes(tensor.shape[dim], launch.group.size)
    launch.lengths[stream] = sizes
    index = launch.group.index
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


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **rest: Any,
) -> Tensor:
    """`scaled_dot_product_attention` on [B, N, L, H]: over the whole sequence of the launch."""
    launch = _split_launch()
    is_special = bool(dropout_p or is_causal or any(rest.values()))
    is_square = query.shape == key.shape == value.shape and not is_special
    if launch is None or launch.attending is None:
        if _active is not None and is_square:
            return self_attention(query, key, value, attn_mask, scale=scale)
        return local_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **rest
        )
    if not is_square:
        raise NotImplementedError(
            "self-attention of a split sequence takes queries, keys and values of one shape, no "
            f"dropout and no causal mask; found {tuple(query.shape)}, {tuple(key.shape)}, "
            f"{tuple(value.shape)}, dropout {dropout_p}, causal {is_causal}, {rest}"
        )
    launch.attending.has_exchanged = True
    streams = launch.joint_streams
    split = AttentionSplit(
        group=launch.group,
        ulysses=launch.mode.ulysses(launch.group.size),
        lengths=tuple(map(sum, zip(*streams, strict=True))),
        num_heads=query.shape[1],
    )
    mask = None if attn_mask is None else keys_by_member(attn_mask, streams)
    return split_attention(
        query, key, value, mask, split, scale=scale, kernel=launch.attending.kernel
    )
