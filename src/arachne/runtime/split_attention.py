"""Self-attention over a whole launch, from what each member holds of its queries, keys and values.

Shape suffixes:
  B batch   L tokens of this member   N heads   M heads of this member   S tokens of its part
  H head size
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from arachne.runtime.attention_kernels import KernelName, kernel_named
from arachne.runtime.attention_split import AttentionSplit
from arachne.runtime.local_attention import local_attention, self_attention
from arachne.runtime.ring_attention import Ring, ring_attention
from arachne.runtime.ulysses import to_heads, to_tokens


def split_attention(
    query_BNLH: Tensor,
    key_BNLH: Tensor,
    value_BNLH: Tensor,
    mask: Tensor | None,
    split: AttentionSplit,
    *,
    scale: float | None,
    kernel: KernelName,
    is_causal: bool = False,
) -> Tensor:
    """Attention [B, N, L, H] of this member's tokens to all tokens of the launch.

    `mask` [B or 1, 1, 1, all tokens] has the keys in the order of the members. If it `is_causal`,
    a token sees those up to itself, and the members hold theirs in the order of `striped`.
    """
    if split.ulysses == 1:
        tensors_BMSH = query_BNLH, key_BNLH, value_BNLH
    else:
        tensors_BMSH = to_heads(split, query_BNLH, key_BNLH, value_BNLH)
    query, key, value = tensors_BMSH
    if split.num_parts > 1:
        ring = Ring(
            split=split,
            kernel=kernel_named(kernel, query, is_masked=mask is not None),
            scale=query.shape[-1] ** -0.5 if scale is None else scale,
            is_causal=is_causal,
        )
        mixed = ring_attention(query, key, value, mask, ring)
    elif is_causal and query.shape[1]:
        mixed = local_attention(query, key, value, mask, is_causal=True, scale=scale)
    elif query.shape[1]:
        mixed = self_attention(query, key, value, mask, scale=scale)
    else:  # A member without a head computes nothing but takes part in the backward's exchanges.
        mixed = (query + key + value) * 0
    return mixed if split.ulysses == 1 else to_tokens(split, mixed)[0]


def keys_by_member(mask: Tensor, streams: Sequence[Sequence[int]]) -> Tensor:
    """A mask over all keys in the model's order, brought into the order of the members.

    The model has its streams one after the other; of `streams[i][p]` tokens each, every member has
    its piece of one, then of the next.

    Raises:
        NotImplementedError: The mask is not one over whole keys.
    """
    num_keys = sum(map(sum, streams))
    if mask.shape[-1] != num_keys or any(size != 1 for size in mask.shape[-3:-1]):
        raise NotImplementedError(
            f"self-attention of a split sequence takes masks over its keys, [batch, 1, 1, "
            f"{num_keys}] here; found {tuple(mask.shape)}"
        )
    if len(streams) == 1:
        return mask
    whole = mask.split([sum(lengths) for lengths in streams], dim=-1)
    pieces = [part.split(list(n), dim=-1) for part, n in zip(whole, streams, strict=True)]
    return torch.cat([piece for member in zip(*pieces, strict=True) for piece in member], dim=-1)
