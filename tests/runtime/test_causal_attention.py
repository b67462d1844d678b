"""Causal attention of tokens that ranks hold in stripes: exact in every split, and balanced."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arachne.runtime import split_attention as module
from arachne.runtime.attention_kernels import AttentionKernel
from arachne.runtime.attention_split import AttentionSplit, striped
from arachne.runtime.launcher import run_ranks
from arachne.runtime.split_attention import split_attention
from tests.runtime.rank_groups import open_groups

NUM_TOKENS = (1, 2, 5, 11, 12)
"""Fewer than ranks, uneven, and even."""


@given(st.integers(0, 60), st.integers(1, 6), st.integers(1, 4))
def test_stripes_hold_every_token_once_and_in_order(num_tokens, num_parts, ulysses):
    members = striped(num_tokens, num_parts * ulysses, ulysses)
    parts = [
        [token for member in members[first : first + ulysses] for token in member]
        for first in range(0, len(members), ulysses)
    ]
    assert parts == [list(range(part, num_tokens, num_parts)) for part in range(num_parts)]
    for first in range(0, len(members), ulysses):
        lengths = [len(member) for member in members[first : first + ulysses]]
        assert max(lengths) - min(lengths) <= 1


@given(st.integers(1, 400), st.integers(1, 8))
def test_stripes_share_the_work_and_neighbours_do_not(num_tokens, num_parts):
    parts = striped(num_tokens, num_parts, 1)
    assert share_of_largest([work_of(part) for part in parts]) == pytest.approx(
        largest_share(num_tokens, num_parts)
    )
    each = num_tokens
    neighbours = [range(first * each, (first + 1) * each) for first in range(num_parts)]
    expected = ((2 * num_parts - 1) * each + 1) / (num_parts * each + 1)
    assert share_of_largest([work_of(part) for part in neighbours]) == pytest.approx(expected)


def work_of(part):
    """Pairs of a token and one that it sees."""
    return sum(token + 1 for token in part)


def share_of_largest(work):
    return max(work) * len(work) / sum(work)


def largest_share(num_tokens, num_parts):
    rest = num_tokens % num_parts
    more = (num_parts - 1) * num_tokens + rest * (num_parts - rest)
    return 1 + more / (num_tokens * (num_tokens + 1))


def one_process(tensors, gradient):
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True, scale=0.6)
    out.backward(gradient)
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def outcomes_of_all_splits(world):
    """By (ulysses, tokens, kernel): the largest error, and how many pairs this rank computed."""
    _, groups = open_groups(world)
    named, pairs = module.kernel_named, []

    def counting(*args, **kwargs):
        kernel = named(*args, **kwargs)

        def forward(part):
            num_queries, num_keys = part.query.shape[-2], part.key.shape[-2]
            assert num_queries == num_keys
            pairs.append(num_queries * (num_queries + 1) // 2)
            return kernel.forward(part)

        return AttentionKernel(forward=forward, backward=kernel.backward)

    module.kernel_named = counting
    degrees = [d for d in range(1, world.size + 1) if world.size % d == 0]
    outcomes = {}
    for ulysses, num_tokens, kernel in itertools.product(degrees, NUM_TOKENS, ("flash", "math")):
        generator = torch.Generator().manual_seed(7)
        shape = (4, 2, 3, num_tokens, 4)
        *whole, gradient = torch.randn(shape, generator=generator, dtype=torch.float64).unbind()
        members = striped(num_tokens, world.size, ulysses)
        split = AttentionSplit(
            group=groups.world, ulysses=ulysses, lengths=tuple(map(len, members)), num_heads=3
        )
        mine = list(members[world.rank])
        query, key, value = (tensor[:, :, mine].clone().requires_grad_() for tensor in whole)
        pairs.clear()
        out = split_attention(
            query, key, value, None, split, scale=0.6, kernel=kernel, is_causal=True
        )
        out.backward(gradient[:, :, mine])
        found = [out.detach(), query.grad, key.grad, value.grad]
        error = max(
            float((a - b[:, :, mine]).abs().max()) if a.numel() else 0.0
            for a, b in zip(found, one_process(whole, gradient), strict=True)
        )
        outcomes[ulysses, num_tokens, kernel] = error, sum(pairs)
    return outcomes


@pytest.mark.distributed
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_every_split_gives_the_causal_attention_of_one_process(world_size):
    of_ranks = run_ranks(world_size, outcomes_of_all_splits, timeout_s=30.0)
    for outcomes in of_ranks:
        errors = {case: error for case, (error, _) in outcomes.items()}
        assert len(errors) == len(NUM_TOKENS) * 2 * (3 if world_size == 4 else 2)
        assert max(errors.values()) < 1e-12, errors
    for num_tokens in NUM_TOKENS:
        computed = [outcomes[1, num_tokens, "flash"][1] for outcomes in of_ranks]
        assert sum(computed) == num_tokens * (num_tokens + 1) // 2, "each pair once, and no other"
        assert share_of_largest(computed) == pytest.approx(largest_share(num_tokens, world_size))
