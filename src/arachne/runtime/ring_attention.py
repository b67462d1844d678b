"""Ring attention: every part of the sequence attends to all parts, whose keys and values travel.

While a member works on the part that it has, the next one is on its way. The softmax averages of
the parts are merged by their normalisers, in float32 or wider. The backward lets the keys and
values travel again; a part's share of their gradient goes straight home, where it is summed in
float32: half the bytes of a float32 sum that travels along, and no rounding on the way.

Source of the method: Ring Attention (arXiv 2310.01889); online softmax (arXiv 1805.02867).

Shape suffixes:
  B batch   M heads of this member   S tokens of its part   K tokens of a visiting part
  H head size   2 keys and values
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from arachne.runtime.attention_kernels import AttentionKernel, PartInputs
from arachne.runtime.attention_split import AttentionSplit
from arachne.runtime.collectives import Parcel, Transfer, start_exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """How one attention runs in its ring.

    Attributes:
        split: Who holds what.
        kernel: Computes attention to one part.
        scale: Factor of the scores.
        is_causal: Whether tokens see only those up to themselves; the members then hold them as
            `striped` says.
    """

    split: AttentionSplit
    kernel: AttentionKernel
    scale: float
    is_causal: bool = False


def ring_attention(
    query_BMSH: Tensor, key_BMSH: Tensor, value_BMSH: Tensor, mask: Tensor | None, ring: Ring
) -> Tensor:
    """Attention [B, M, S, H] of this member's part and heads to the whole sequence.

    `mask` [B or 1, 1, 1, all tokens] has the keys in the order of the parts; it gets no gradient.
    """
    return _RingAttention.apply(query_BMSH, key_BMSH, value_BMSH, mask, ring)


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, ring: Ring
    ) -> Tensor:
        wide = torch.promote_types(query.dtype, torch.float32)
        out = torch.zeros_like(query, dtype=wide)
        # Finite, so that merging a part whose keys are all masked (−inf) stays finite too.
        lse = out.new_full((*query.shape[:3], 1), torch.finfo(wide).min)
        for part, block_2BMKH in _visits(torch.stack((key, value)), ring.split):
            seeing, seen = _pairs(query, part, ring)
            inputs = _part_inputs(query[..., seeing, :], block_2BMKH, mask, part, ring, seen)
            if inputs.query.numel() and inputs.key.numel():
                rows = out[..., seeing, :], lse[..., seeing, :]
                _merge(*rows, *ring.kernel.forward(inputs))
        out = out.to(query.dtype)
        ctx.ring = ring
        ctx.save_for_backward(query, key, value, mask, out, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor | None, ...]:
        query, key, value, mask, out, lse = ctx.saved_tensors
        ring: Ring = ctx.ring
        of_query = torch.zeros_like(query, dtype=lse.dtype)
        own_2BMSH = torch.stack((key, value))
        home = _HomeSum(torch.zeros_like(own_2BMSH, dtype=lse.dtype), ring.split)
        for part, block_2BMKH in _visits(own_2BMSH, ring.split):
            share_2BMKH = torch.zeros_like(block_2BMKH)
            seeing, seen = _pairs(query, part, ring)
            inputs = _part_inputs(query[..., seeing, :], block_2BMKH, mask, part, ring, seen)
            if inputs.query.numel() and inputs.key.numel():
                rows = [tensor[..., seeing, :] for tensor in (gradients[0], out, lse)]
                query_share, *shares = ring.kernel.backward(inputs, *rows)
                of_query[..., seeing, :] += query_share
                share_2BMKH[..., seen, :] = torch.stack(shares)
            home.send(part, share_2BMKH)
        of_key, of_value = home.total().to(key.dtype)
        return of_query.to(query.dtype), of_key, of_value, None, None


def _pairs(query: Tensor, part: int, ring: Ring) -> tuple[slice, slice]:
    """Which queries see something of a part, and which of its keys some query sees.

    In stripes, query a of part i and key b of part j are tokens a·p + i and b·p + j: the query
    sees the key if b ≤ a and j ≤ i, or b < a. So without its first query, for j > i, either is the
    causal triangle of as many keys as queries.
    """
    if not ring.is_causal:
        return slice(None), slice(None)
    first = int(ring.split.part < part)
    return slice(first, None), slice(max(0, query.shape[-2] - first))


def _part_inputs(
    query: Tensor, block_2BMKH: Tensor, mask: Tensor | None, part: int, ring: Ring, seen: slice
) -> PartInputs:
    lengths = ring.split.part_lengths
    first = sum(lengths[:part])
    of_part = None if mask is None else mask[..., first : first + lengths[part]]
    return PartInputs(
        query=query,
        key=block_2BMKH[0][..., seen, :],
        value=block_2BMKH[1][..., seen, :],
        mask=None if of_part is None else of_part[..., seen],
        scale=ring.scale,
        is_causal=ring.is_causal,
    )


def _merge(out: Tensor, lse: Tensor, of_part: Tensor, lse_of_part: Tensor) -> None:
    """Add a part to what `out` and `lse` hold of the parts before it, in place."""
    both = torch.logaddexp(lse, lse_of_part)
    out.mul_((lse - both).exp()).add_(of_part * (lse_of_part - both).exp())
    lse.copy_(both)


def _visits(own_2BMSH: Tensor, split: AttentionSplit) -> Iterator[tuple[int, Tensor]]:
    """Every part's keys and values [2, B, M, K, H]: one's own, then the others as they arrive.

    While the caller works on one, the next one travels.
    """
    count, lengths = split.num_parts, split.part_lengths
    block = own_2BMSH
    for turn in range(count - 1):
        part = (split.part - turn) % count
        _, B, M, _, H = block.shape
        arriving = block.new_empty((2, B, M, lengths[(part - 1) % count], H))
        transfer = _start_transfer(
            split,
            Parcel(member=split.member((split.part + 1) % count), content="kv", tensor=block),
            Parcel(member=split.member((split.part - 1) % count), content="kv", tensor=arriving),
        )
        yield part, block
        transfer.wait()
        block = arriving
    yield (split.part + 1) % count, block


class _HomeSum:
    """The gradient of one's own keys and values; its shares come from the members of the ring."""

    def __init__(self, zeros_2BMSH: Tensor, split: AttentionSplit) -> None:
        self._total = zeros_2BMSH
        self._split = split
        self._coming: tuple[Transfer, Tensor] | None = None

    def send(self, part: int, share_2BMKH: Tensor) -> None:
        """Send a part's share to its owner, whose turn with one's own part it is just now."""
        self._collect()
        split = self._split
        if part == split.part:
            self._total += share_2BMKH
            return
        holder = (2 * split.part - part) % split.num_parts
        arriving = torch.empty_like(self._total, dtype=share_2BMKH.dtype)
        transfer = _start_transfer(
            split,
            Parcel(member=split.member(part), content="kv gradient", tensor=share_2BMKH),
            Parcel(member=split.member(holder), content="kv gradient", tensor=arriving),
        )
        self._coming = transfer, arriving

    def total(self) -> Tensor:
        """The sum, when every part was sent."""
        self._collect()
        return self._total

    def _collect(self) -> None:
        if self._coming is not None:
            transfer, arriving = self._coming
            transfer.wait()
            self._total += arriving
            self._coming = None


def _start_transfer(split: AttentionSplit, sent: Parcel, received: Parcel) -> Transfer:
    """One step of all rings of the launch; together they move all keys and values, or as much."""
    _, B, _, _, H = sent.tensor.shape
    return start_exchange(
        split.group,
        [sent],
        [received],
        of_all_members=2 * B * sum(split.lengths) * split.num_heads * H,
        dtype=sent.tensor.dtype,
    )
