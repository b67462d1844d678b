"""Flat-buffer ZeRO-1: every rank accumulates whole gradients, and owns a part of the optimizer.

A rank with more, fewer or no launches just has another sum in its buffers; `reduce` is the only
place where ranks meet, and it sums. Nothing here divides: the loss carries each clip's weight.
Source of the method: ZeRO (arXiv 1910.02054), stage 1. Where a rule needs whole parameters, each
belongs to one rank, and is summed to it and sent from it.

Buckets follow each other closely: while one is on its way, the one before is added up, or the next
one is updated. All ranks start and await them in one order.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn

from arachne.runtime.buckets import Bucket, Named, Section, even_parts, owners
from arachne.runtime.collectives import Transfer, overlapped
from arachne.runtime.gradient_buffers import GradientStorage, wide_dtype
from arachne.runtime.optimizer_state import StateKinds, TorchState
from arachne.runtime.optimizers import OptimizerChoice, UpdateRule
from arachne.runtime.process_groups import RankGroup

MASTER = "master"
AVERAGE = "ema"
"""Kind of the moving average of the weights."""

_CACHED_ELEMENTS = 2**16
"""Half a megabyte of float64; *assumption*: a core's own cache holds as much."""

_NO_NUMBERS: Mapping[str, float] = MappingProxyType({})
_NO_TENSORS: Mapping[str, Tensor] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What a rank owns of one parameter: elements [offset, offset + len(values)) when flattened.

    Attributes:
        kind: `master`, `ema`, or whatever array the optimizer keeps of it.
    """

    name: str
    kind: str
    offset: int
    values: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ruled:
    """The buckets under one rule, and the optimizer of what this rank owns of them."""

    buckets: Sequence[Bucket]
    states: Sequence[TorchState]
    """One for each bucket, so that one can be updated while the others travel."""
    kinds: Mapping[int, StateKinds]
    """By the number of dimensions of a section's tensor."""

    def by_bucket(self) -> Iterator[tuple[Bucket, TorchState]]:
        return zip(self.buckets, self.states, strict=True)

    def sections(self) -> Iterator[tuple[Section, TorchState]]:
        for bucket, state in self.by_bucket():
            for section in bucket.sections:
                yield section, state


class ShardedOptimizer:
    """An optimizer over the parts of flat buffers; all ranks construct it with equal parameters.

    Args:
        module: Its parameters become views of the buffers; frozen ones are left alone.
        group: All ranks.
        choice: Which optimizer updates what.
        gradients: Where launches add up their gradients.
        average_decay: Of the moving average of the weights; 0 keeps none.
        unrounded: By name, what masters begin at where parameters hold it rounded, on any device;
            call `share` afterwards.

    Raises:
        ConfigError: The optimizer is not installed, or cannot do what is asked.
    """

    def __init__(
        self,
        module: nn.Module,
        group: RankGroup,
        choice: OptimizerChoice,
        *,
        gradients: GradientStorage = "float32",
        average_decay: float = 0.0,
        unrounded: Mapping[str, Tensor] = _NO_TENSORS,
    ) -> None:
        self.group = group
        self.num_updates = 0
        self._average_decay = average_decay
        named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        self.shapes = {name: tuple(p.shape) for name, p in named}
        """Shape of every trained parameter, by name."""
        self._ruled: list[_Ruled] = []
        for rule, members in _by_rule(named, choice):
            buckets = [
                Bucket(
                    part,
                    group,
                    owner=owner,
                    gradients=gradients,
                    has_average=average_decay > 0.0,
                )
                for owner, part in _parts(members, group, is_whole=rule.is_whole)
            ]
            self._ruled.append(_ruled(rule, members, buckets))
        self._buckets = [bucket for ruled in self._ruled for bucket in ruled.buckets]
        for bucket in self._buckets:
            for section in bucket.sections:
                _begin(section, unrounded)
        self._on_the_way: list[Transfer] = []
        """Of updated parameters, not yet awaited."""
        module.register_forward_pre_hook(lambda *_: self.settle())

    def reduce(self) -> None:
        """Sum the gradients of all ranks, after the last launch; each keeps what it owns."""
        for transfer in overlapped(bucket.start_reducing() for bucket in reversed(self._buckets)):
            transfer.wait()

    def squared_norm_of_shard(self) -> Tensor:
        """Sum of squares of this rank's reduced gradients, float64; sums to the global norm²."""
        squares = [_sum_of_squares(bucket.gradient_shard) for bucket in self._buckets]
        return torch.stack(squares).sum()

    def step(self, *, lr: float, gradient_scale: float = 1.0) -> None:
        """Update what this rank owns from its reduced gradients, scaled."""
        for ruled in self._ruled:
            for bucket, state in ruled.by_bucket():
                self._step_bucket(bucket, state, lr, gradient_scale)
        self.num_updates += 1

    def share(self, *, averages: bool = False) -> None:
        """Give every rank all updated parameters, or the averages in their place."""
        self.settle()
        with torch.no_grad():
            started = (bucket.start_sharing(averages=averages) for bucket in self._buckets)
            self._on_the_way = overlapped(started)
        self.settle()

    def step_and_share(self, *, lr: float, gradient_scale: float = 1.0) -> None:
        """`step` and `share`, bucket by bucket: each travels while the next one is updated.

        The last ones may still be on their way afterwards. The module's forward pass awaits them;
        whoever looks at its parameters otherwise calls `settle` first.
        """
        self.settle()

        def started() -> Iterator[Transfer]:
            for ruled in self._ruled:
                for bucket, state in ruled.by_bucket():
                    with self.group.recorder.doing("optimizer"):
                        self._step_bucket(bucket, state, lr, gradient_scale)
                    with torch.no_grad():
                        transfer = bucket.start_sharing(averages=False)
                    yield transfer

        self._on_the_way = overlapped(started())
        self.num_updates += 1

    def settle(self) -> None:
        """Await the parameters that are still on their way; all ranks call it at one place."""
        for transfer in self._on_the_way:
            transfer.wait()
        self._on_the_way = []

    def clear_gradients(self) -> None:
        """Forget what was accumulated; the buffers stay."""
        for bucket in self._buckets:
            bucket.gradients.clear()

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """What this rank accumulated, by parameter name; not reduced."""
        for bucket in self._buckets:
            for name, parameter, offset in bucket.places:
                yield name, bucket.gradients.part(offset, offset + parameter.numel())

    def gradient_shards(self) -> list[Tensor]:
        """Copies of this rank's reduced gradients, what it owns of each bucket."""
        return [bucket.gradient_shard.clone() for bucket in self._buckets]

    def pieces(self) -> Iterator[Piece]:
        """This rank's master weights and optimizer state as pieces of the named parameters."""
        for ruled in self._ruled:
            for section, state in ruled.sections():
                arrays = {MASTER: section.master.detach().view(-1)}
                if section.average is not None:
                    arrays[AVERAGE] = section.average.view(-1)
                for kind in ruled.kinds[section.master.ndim].arrays:
                    arrays[kind] = state.array(section.master, kind)
                for stretch in section.stretches:
                    for kind, values in arrays.items():
                        yield Piece(
                            name=stretch.name,
                            kind=kind,
                            offset=stretch.offset,
                            values=values[stretch.low : stretch.high],
                        )

    def numbers(self) -> dict[str, float]:
        """What the optimizer remembers beside arrays; the same for all parameters that have it.

        Every number is known to the group's first rank.
        """
        found: dict[str, float] = {}
        for ruled in self._ruled:
            for section, state in ruled.sections():
                for kind in ruled.kinds[section.master.ndim].numbers:
                    found[kind] = state.number(section.master, kind)
        return found

    def load(
        self,
        pieces: Mapping[str, Mapping[str, Tensor]],
        num_updates: int,
        numbers: Mapping[str, float] = _NO_NUMBERS,
    ) -> None:
        """Take over state after `num_updates` steps; call `share` on all ranks afterwards.

        `pieces[kind][name]` holds the elements that `owned_ranges` names. Averages that are not
        there begin at the masters; before the first update the optimizer begins anew.
        """
        known = {"step": float(num_updates), **numbers}
        self.num_updates = num_updates
        for ruled in self._ruled:
            for state in ruled.states:
                state.forget()
            for section, state in ruled.sections():
                master = _joined(section, pieces[MASTER])
                with torch.no_grad():
                    section.master.copy_(master)
                    if section.average is not None:
                        found = pieces.get(AVERAGE)
                        section.average.copy_(master if found is None else _joined(section, found))
                if num_updates:
                    kinds = ruled.kinds[section.master.ndim]
                    arrays = {kind: _joined(section, pieces[kind]) for kind in kinds.arrays}
                    state.put(section.master, kinds, arrays, known)

    def owned_bytes(self) -> int:
        """Masters, averages and optimizer state that this rank holds now."""
        found = 0
        for ruled in self._ruled:
            for section, state in ruled.sections():
                average = 0 if section.average is None else section.average.nbytes
                found += section.master.nbytes + average + state.num_bytes(section.master)
        return found

    def owned_ranges(self) -> Iterator[tuple[str, int, int]]:
        """Which elements [start, stop) of each flattened parameter this rank owns."""
        for bucket in self._buckets:
            for section in bucket.sections:
                for stretch in section.stretches:
                    yield stretch.name, stretch.offset, stretch.offset + stretch.high - stretch.low

    def _step_bucket(
        self, bucket: Bucket, state: TorchState, lr: float, gradient_scale: float
    ) -> None:
        for section in bucket.sections:
            if gradient_scale != 1.0:
                section.gradient.mul_(gradient_scale)
            section.master.grad = section.gradient
        state.step(lr)
        self._average(bucket)

    def _average(self, bucket: Bucket) -> None:
        """Move the averages towards the masters: a ← d·a + (1 − d)·w.

        After n earlier updates d = min(decay, (1 + n) / (10 + n)), so that the start is soon
        forgotten. Source: TensorFlow's ExponentialMovingAverage with `num_updates`.
        """
        n = self.num_updates
        decay = min(self._average_decay, (1.0 + n) / (10.0 + n))
        for section in bucket.sections:
            if section.average is not None:
                section.average.lerp_(section.master.detach(), 1.0 - decay)


def _by_rule(
    named: Sequence[Named], choice: OptimizerChoice
) -> Iterator[tuple[UpdateRule, list[Named]]]:
    """The parameters under each rule, in their order; rules without any are left out."""
    if not named:
        return
    first = named[0][1]
    rules = choice.rules(wide_dtype(first.dtype), first.device)
    members: list[list[Named]] = [[] for _ in rules]
    for name, parameter in named:
        index = next(i for i, rule in enumerate(rules) if rule.applies_to(name, parameter.shape))
        members[index].append((name, parameter))
    for rule, found in zip(rules, members, strict=True):
        if found:
            yield rule, found


def _parts(
    named: Sequence[Named], group: RankGroup, *, is_whole: bool
) -> Iterator[tuple[int | None, list[Named]]]:
    """Buckets: their owner, if one member owns them whole, and their parameters."""
    if not is_whole:
        for part in even_parts(named):
            yield None, part
        return
    owner_of = owners(named, group.size)
    for owner in range(group.size):
        mine = [each for each, found in zip(named, owner_of, strict=True) if found == owner]
        for part in even_parts(mine):
            yield owner, part


def _ruled(rule: UpdateRule, named: Sequence[Named], buckets: Sequence[Bucket]) -> _Ruled:
    first = named[0][1]
    like = first.detach().new_empty(0, dtype=wide_dtype(first.dtype))
    dims = {max(1, p.ndim) for _, p in named} if rule.is_whole else {1}
    # First, since it tells what cannot be made in one line.
    kinds = {dim: rule.state.kinds(rule.make, rule.what, dim, like) for dim in sorted(dims)}
    states = [
        rule.state(rule.make, [section.master for section in bucket.sections]) for bucket in buckets
    ]
    return _Ruled(buckets=buckets, states=states, kinds=kinds)


@torch.no_grad()
def _begin(section: Section, unrounded: Mapping[str, Tensor]) -> None:
    """Masters, and their average, at the values that parameters hold rounded."""
    owned = [section.master] if section.average is None else [section.master, section.average]
    for stretch in section.stretches:
        if stretch.name in unrounded:
            first = unrounded[stretch.name].reshape(-1)[stretch.offset :]
            for values in owned:
                values.view(-1)[stretch.low : stretch.high] = first[: stretch.high - stretch.low]


def _sum_of_squares(values: Tensor) -> Tensor:
    """Of a flat tensor, in float64; on a CPU in pieces that stay in its cache."""
    size = _CACHED_ELEMENTS if values.device.type == "cpu" else max(1, values.numel())
    pieces = map(Tensor.double, values.split(size))
    return torch.stack([torch.dot(piece, piece) for piece in pieces]).sum()


def _joined(section: Section, pieces: Mapping[str, Tensor]) -> Tensor:
    """A tensor of the section's shape from the pieces of its parameters; padding is zero."""
    whole = torch.zeros_like(section.master).detach().view(-1)
    for stretch in section.stretches:
        whole[stretch.low : stretch.high] = pieces[stretch.name]
    return whole.view(section.master.shape)
