"""Flat-buffer ZeRO-1: every rank accumulates whole gradients, and owns a shard of the optimizer.

Per bucket there is one flat buffer of parameters (the model's parameters are views of it) and one
of gradients. A rank with more, fewer or no launches just has another sum in its buffer; `reduce`
is the only place where ranks meet, and it sums. Nothing here divides: the loss carries each clip's
weight. Source of the method: ZeRO (arXiv 1910.02054), stage 1.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from arachne.runtime import collectives
from arachne.runtime.process_groups import RankGroup

_BUCKET_BYTES = 256 * 2**20
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamWOptions:
    """AdamW's constants; the learning rate arrives with each step."""

    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What a rank owns of one parameter: elements [offset, offset + len(values)) when flattened."""

    name: str
    kind: str
    offset: int
    values: Tensor


@dataclass(slots=True)
class _Bucket:
    parameters: list[tuple[str, nn.Parameter, int]]
    flat: Tensor
    gradient: Tensor
    master: Tensor
    gradient_shard: Tensor


class ShardedOptimizer:
    """AdamW over the shards of flat buffers; all ranks construct it with equal parameters."""

    def __init__(self, module: nn.Module, group: RankGroup, options: AdamWOptions) -> None:
        self.group = group
        named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        self._buckets = [self._bucket(part) for part in _parts(named)]
        self._adamw = torch.optim.AdamW(
            [bucket.master for bucket in self._buckets],
            lr=0.0,
            betas=options.betas,
            eps=options.eps,
            weight_decay=options.weight_decay,
        )
        self.shapes = {name: tuple(p.shape) for name, p in named}
        """Shape of every trained parameter, by name."""

    def _bucket(self, named: list[tuple[str, nn.Parameter]]) -> _Bucket:
        first = named[0][1]
        total = sum(p.numel() for _, p in named)
        shard = -(-total // self.group.size)
        wide = torch.promote_types(first.dtype, torch.float32)
        flat = torch.zeros(shard * self.group.size, dtype=first.dtype, device=first.device)
        gradient = torch.zeros_like(flat, dtype=wide)
        placed: list[tuple[str, nn.Parameter, int]] = []
        offset = 0
        for name, parameter in named:
            end = offset + parameter.numel()
            flat[offset:end] = parameter.data.reshape(-1)
            parameter.data = flat[offset:end].view(parameter.shape)
            _accumulate_into(parameter, gradient[offset:end].view(parameter.shape))
            placed.append((name, parameter, offset))
            offset = end
        start = self.group.index * shard
        master = flat[start : start + shard].to(wide, copy=True).requires_grad_()
        return _Bucket(
            parameters=placed,
            flat=flat,
            gradient=gradient,
            master=master,
            gradient_shard=torch.zeros_like(master, requires_grad=False),
        )

    def reduce(self) -> None:
        """Sum the gradients of all ranks; each keeps its shard. Call it after the last launch."""
        for bucket in reversed(self._buckets):
            collectives.reduce_scatter(bucket.gradient_shard, bucket.gradient, self.group)

    def squared_norm_of_shard(self) -> Tensor:
        """Sum of squares of this rank's reduced gradients, float64; sums to the global norm²."""
        squares = [bucket.gradient_shard.double().pow(2).sum() for bucket in self._buckets]
        return torch.stack(squares).sum()

    def step(self, *, lr: float, gradient_scale: float = 1.0) -> None:
        """Update this rank's shard from its reduced gradients, scaled."""
        for bucket in self._buckets:
            if gradient_scale != 1.0:
                bucket.gradient_shard.mul_(gradient_scale)
            bucket.master.grad = bucket.gradient_shard
        for settings in self._adamw.param_groups:
            settings["lr"] = lr
        self._adamw.step()

    def share(self) -> None:
        """Give every rank all updated parameters."""
        with torch.no_grad():
            for bucket in self._buckets:
                mine = bucket.master.detach().to(bucket.flat.dtype)
                collectives.all_gather(bucket.flat, mine, self.group)

    def clear_gradients(self) -> None:
        """Forget what was accumulated; the buffers stay."""
        for bucket in self._buckets:
            bucket.gradient.zero_()

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """What this rank accumulated, by parameter name; not reduced."""
        for bucket in self._buckets:
            for name, parameter, offset in bucket.parameters:
                yield name, bucket.gradient[offset : offset + parameter.numel()]

    def gradient_shards(self) -> list[Tensor]:
        """Copies of this rank's reduced gradients, a flat shard of each bucket."""
        return [bucket.gradient_shard.clone() for bucket in self._buckets]

    def pieces(self) -> Iterator[Piece]:
        """This rank's master weights and moments as pieces of the named parameters."""
        for bucket in self._buckets:
            state = self._adamw.state.get(bucket.master, {})
            tensors = {"master": bucket.master.detach()}
            for kind in MOMENTS:
                tensors[kind] = state.get(kind, torch.zeros_like(tensors["master"]))
            for name, low, high, offset in self._owned(bucket):
                for kind, values in tensors.items():
                    yield Piece(name=name, kind=kind, offset=offset, values=values[low:high])

    def load(self, pieces: Mapping[str, Mapping[str, Tensor]], num_updates: int) -> None:
        """Take over state after `num_updates` steps; call `share` on all ranks afterwards.

        `pieces[kind][name]` holds the elements that `owned_ranges` names.
        """
        for bucket in self._buckets:
            tensors = {kind: torch.zeros_like(bucket.master) for kind in ("master", *MOMENTS)}
            for name, low, high, _ in self._owned(bucket):
                for kind, target in tensors.items():
                    target.data[low:high] = pieces[kind][name]
            with torch.no_grad():
                bucket.master.copy_(tensors.pop("master"))
            self._adamw.state.pop(bucket.master, None)
            if num_updates:
                moments = {kind: tensor.detach() for kind, tensor in tensors.items()}
                count = torch.tensor(float(num_updates))
                self._adamw.state[bucket.master] = {"step": count, **moments}

    def owned_ranges(self) -> Iterator[tuple[str, int, int]]:
        """Which elements [start, stop) of each flattened parameter this rank owns."""
        for bucket in self._buckets:
            for name, low, high, offset in self._owned(bucket):
                yield name, offset, offset + high - low

    def _owned(self, bucket: _Bucket) -> Iterator[tuple[str, int, int, int]]:
        """(name, from and to in the shard, offset in the parameter) of what this rank owns."""
        shard = bucket.master.numel()
        start, stop = self.group.index * shard, (self.group.index + 1) * shard
        for name, parameter, offset in bucket.parameters:
            low, high = max(start, offset), min(stop, offset + parameter.numel())
            if low < high:
                yield name, low - start, high - start, low - offset


def _accumulate_into(parameter: nn.Parameter, view: Tensor) -> None:
    """Let backward add to `view`: in place where the types agree, else in a hook."""
    if parameter.dtype == view.dtype:
        parameter.grad = view
        return

    def add(changed: Tensor) -> None:
        assert changed.grad is not None
        view.add_(changed.grad)
        changed.grad = None

    parameter.register_post_accumulate_grad_hook(add)


def _parts(named: list[tuple[str, nn.Parameter]]) -> list[list[tuple[str, nn.Parameter]]]:
    """Parameters in order, cut into runs of one type and bounded size."""
    parts: list[list[tuple[str, nn.Parameter]]] = []
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
