"""Ulysses: the members of a part trade their tokens for heads, and back. Both are each other's
adjoint. Source of the method: DeepSpeed Ulysses (arXiv 2309.14509).

The trade is an all-to-all on the launch's own group in which members of other parts send each other
nothing. That needs no communicator for the part (a part of an unusual block may have none, and on
GPUs each costs half a gigabyte), every member of the launch issues the same collectives in the same
order, and NCCL, which makes an all-to-all of single sends, moves no byte more for it.

What travels has the sequence first: pieces that arrive in member order then are the whole sequence
as they lie, and a single clip's attention output can be sent as it is. Packing costs one copy, and
unpacking heads another one; nothing else is copied.

Shape suffixes:
  B batch   L tokens of this member   S tokens of its part   N heads   M heads of this member
  H head size   T tensors that travel together   _flat one dimension, pieces in member order
"""

from typing import Any

import torch
from torch import Tensor

from arachne.runtime import collectives
from arachne.runtime.attention_split import AttentionSplit


def to_heads(split: AttentionSplit, *tensors_BNLH: Tensor) -> tuple[Tensor, ...]:
    """Each [B, N, L, H] becomes [B, M, S, H]; differentiable."""
    return _ToHeads.apply(split, *tensors_BNLH)


def to_tokens(split: AttentionSplit, *tensors_BMSH: Tensor) -> tuple[Tensor, ...]:
    """Each [B, M, S, H] becomes [B, N, L, H]; differentiable."""
    return _ToTokens.apply(split, *tensors_BMSH)


class _ToHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, split: AttentionSplit, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.split = split
        return _traded_for_heads(split, tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *_traded_for_tokens(ctx.split, gradients))


class _ToTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, split: AttentionSplit, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.split = split
        return _traded_for_tokens(split, tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *_traded_for_heads(ctx.split, gradients))


def _traded_for_heads(
    split: AttentionSplit, tensors_BNLH: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    B, N, L, H = tensors_BNLH[0].shape
    T, M = len(tensors_BNLH), split.heads[split.place]
    sent = [L * heads * T * B * H for heads in split.heads]
    sent_flat = tensors_BNLH[0].new_empty(sum(sent))
    first = 0
    for piece_flat, heads in zip(sent_flat.split(sent), split.heads, strict=True):
        piece_LTBMH = piece_flat.view(L, T, B, heads, H)
        for t, tensor_BNLH in enumerate(tensors_BNLH):
            piece_LTBMH[:, t] = tensor_BNLH[:, first : first + heads].permute(2, 0, 1, 3)
        first += heads
    received = [length * M * T * B * H for length in split.lengths_in_part]
    everything = sum(split.lengths) * N * T * B * H
    received_flat = _traded(split, sent_flat, sent, received, everything)
    received_STBMH = received_flat.view(sum(split.lengths_in_part), T, B, M, H)
    return tuple(received_STBMH[:, t].permute(1, 2, 0, 3) for t in range(T))


def _traded_for_tokens(
    split: AttentionSplit, tensors_BMSH: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    B, M, _, H = tensors_BMSH[0].shape
    T, L = len(tensors_BMSH), split.lengths[split.group.index]
    by_token = [tensor_BMSH.permute(2, 0, 1, 3) for tensor_BMSH in tensors_BMSH]
    sent_STBMH = torch.stack(by_token, dim=1) if T > 1 else by_token[0].contiguous()
    sent = [length * M * T * B * H for length in split.lengths_in_part]
    received = [L * heads * T * B * H for heads in split.heads]
    everything = sum(split.lengths) * split.num_heads * T * B * H
    received_flat = _traded(split, sent_STBMH.view(-1), sent, received, everything)
    pieces_TBLMH = [
        piece_flat.view(L, T, B, heads, H).permute(1, 2, 0, 3, 4)
        for piece_flat, heads in zip(received_flat.split(received), split.heads, strict=True)
    ]
    return tuple(out.transpose(1, 2) for out in torch.cat(pieces_TBLMH, dim=3).unbind(0))


def _traded(
    split: AttentionSplit, sent_flat: Tensor, sent: list[int], received: list[int], everything: int
) -> Tensor:
    """What the members of this part sent, in their order; `everything` is what all trade."""
    received_flat = sent_flat.new_empty(sum(received))
    sizes = collectives.Sizes(
        received=split.over_all_members(received),
        sent=split.over_all_members(sent),
        of_all_members=everything,
    )
    collectives.all_to_all(received_flat, sent_flat, sizes, split.group)
    return received_flat
