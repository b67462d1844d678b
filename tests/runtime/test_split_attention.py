"""Attention that ranks compute together is one process's, however tokens and heads are split."""

import itertools

import pytest
import torch

from arachne.runtime import collectives
from arachne.runtime.attention_split import AttentionSplit, split_sizes
from arachne.runtime.launcher import run_ranks
from arachne.runtime.local_attention import local_attention
from arachne.runtime.split_attention import keys_by_member, split_attention
from tests.runtime.rank_groups import open_groups

LENGTHS = {
    2: [(4, 3), (1, 0)],
    3: [(3, 3, 2), (0, 5, 1)],
    4: [(3, 3, 2, 2), (1, 1, 0, 0), (0, 4, 0, 2)],
    6: [(2, 2, 2, 1, 1, 1), (0, 0, 3, 0, 1, 0)],
}
"""Tokens of each member: what a split gives, and splits with members and parts that have none."""

MASKS = ("none", "boolean", "added", "one part only")


def mask_of(kind, batch, num_keys, generator):
    if kind == "none":
        return None
    is_key = torch.rand(batch, 1, 1, num_keys, generator=generator) < 0.6
    is_key[..., 0] = True
    if kind == "one part only":
        is_key = torch.arange(num_keys).view(1, 1, 1, -1) < 1
    if kind == "boolean":
        return is_key
    return torch.zeros(is_key.shape, dtype=torch.float64).masked_fill(~is_key, -torch.inf)


def one_process(tensors, gradient, mask):
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    out = local_attention(*leaves, mask, scale=0.6)
    out.backward(gradient)
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def errors_of_all_splits(world, heads):
    """The largest error of output and gradients, by (ulysses, lengths, batch, mask)."""
    _, groups = open_groups(world)
    errors = {}
    degrees = [d for d in range(1, world.size + 1) if world.size % d == 0]
    cases = itertools.product(degrees, LENGTHS[world.size], (1, 2), MASKS)
    for ulysses, lengths, batch, kind in cases:
        generator = torch.Generator().manual_seed(7)
        shape = (4, batch, heads, sum(lengths), 4)
        *whole, gradient = torch.randn(shape, generator=generator, dtype=torch.float64).unbind()
        mask = mask_of(kind, batch, sum(lengths), generator)
        expected = one_process(whole, gradient, mask)
        split = AttentionSplit(
            group=groups.world, ulysses=ulysses, lengths=lengths, num_heads=heads
        )
        first = sum(lengths[: world.rank])
        mine = slice(first, first + lengths[world.rank])
        leaves = [tensor[:, :, mine].clone().requires_grad_() for tensor in whole]
        out = split_attention(*leaves, mask, split, scale=0.6, kernel="auto")
        out.backward(gradient[:, :, mine])
        found = [out.detach(), *(leaf.grad for leaf in leaves)]
        errors[ulysses, lengths, batch, kind] = max(
            float((a - b[:, :, mine]).abs().max()) if a.numel() else 0.0
            for a, b in zip(found, expected, strict=True)
        )
    return errors


@pytest.mark.distributed
@pytest.mark.parametrize(("world_size", "heads"), [(2, 3), (3, 2), (4, 3)])
def test_every_split_gives_the_attention_of_one_process(world_size, heads):
    num_degrees = {2: 2, 3: 2, 4: 3}[world_size]
    for errors in run_ranks(world_size, errors_of_all_splits, (heads,), timeout_s=30.0):
        assert len(errors) == num_degrees * len(LENGTHS[world_size]) * 2 * len(MASKS)
        assert max(errors.values()) < 1e-12, errors


@pytest.mark.slow
@pytest.mark.distributed
def test_six_ranks_in_every_split_give_the_attention_of_one_process():
    for errors in run_ranks(6, errors_of_all_splits, (4,), timeout_s=60.0):
        assert max(errors.values()) < 1e-12, errors


def errors_in_bfloat16(world):
    """Squared errors against float64: of the ranks together, and of one process in bfloat16."""
    _, groups = open_groups(world)
    generator = torch.Generator().manual_seed(1)
    lengths = split_sizes(203, world.size)
    first = sum(lengths[: world.rank])
    mine = slice(first, first + lengths[world.rank])
    *whole, gradient = torch.randn(4, 1, 4, 203, 32, generator=generator).bfloat16().unbind()
    exact = one_process([t.double() for t in whole], gradient.double(), None)
    alone = one_process(whole, gradient, None)
    leaves = [tensor[:, :, mine].clone().requires_grad_() for tensor in whole]
    split = AttentionSplit(group=groups.world, ulysses=1, lengths=lengths, num_heads=4)
    out = split_attention(*leaves, None, split, scale=0.6, kernel="auto")
    out.backward(gradient[:, :, mine])
    found = [out.detach(), *(leaf.grad for leaf in leaves)]
    assert all(tensor.dtype == torch.bfloat16 for tensor in found)
    squares = torch.zeros(2, 4, dtype=torch.float64)
    for i, (a, b, c) in enumerate(zip(found, alone, exact, strict=True)):
        squares[0, i] = (a.double() - c[:, :, mine]).pow(2).sum()
        squares[1, i] = (b.double() - c)[:, :, mine].pow(2).sum()
    collectives.all_reduce_sum(squares, groups.world)
    return (squares[0] / squares[1]).sqrt().tolist()


@pytest.mark.distributed
def test_in_bfloat16_a_ring_rounds_each_part_once():
    # A rounded output and a rounded share of each part instead of one rounding: √2 at most.
    for ratios in run_ranks(4, errors_in_bfloat16, timeout_s=30.0):
        assert max(ratios) < 1.42, ratios


def test_a_mask_over_two_streams_follows_the_members():
    mask = torch.arange(8).view(1, 1, 1, 8)
    assert keys_by_member(mask, [(2, 2, 1), (1, 1, 1)]).flatten().tolist() == [
        *(0, 1, 5),
        *(2, 3, 6),
        *(4, 7),
    ]
    assert keys_by_member(mask, [(4, 4)]) is mask


@pytest.mark.parametrize("shape", [(8, 8), (2, 1, 8, 8), (2, 3, 1, 8), (2, 1, 1, 4)])
def test_a_mask_that_is_not_over_whole_keys_is_refused(shape):
    with pytest.raises(NotImplementedError, match=r"takes masks over its keys, \[batch, 1, 1, 8\]"):
        keys_by_member(torch.ones(shape), [(4, 4)])
