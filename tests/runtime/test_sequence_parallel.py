"""A model on a part of its sequence gives what the whole model gives, forward and backward."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from arachne.core.families import WAN
from arachne.core.sequence_layout import GatherOutput, SequenceLayout, SplitInput
from arachne.runtime import collectives
from arachne.runtime.launcher import run_ranks
from arachne.runtime.sequence_parallel import install, sequence_parallel, split_sizes
from tests.runtime.plans import BUCKETS, batch_of
from tests.runtime.rank_groups import open_groups
from tests.runtime.tiny_wan import (
    float64_everywhere,
    gradient_of_one_process,
    loss_of,
    tiny_wan,
)


@given(total=st.integers(0, 10_000), num_parts=st.integers(1, 64))
def test_parts_are_in_order_whole_and_alike(total, num_parts):
    sizes = split_sizes(total, num_parts)
    assert len(sizes) == num_parts
    assert sum(sizes) == total
    assert list(sizes) == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


def velocities(model, bucket, batch_size):
    generator = torch.Generator().manual_seed(3)

    def normal(*size):
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    latents = normal(batch_size, 4, *WAN.geometry.latent_grid(bucket))
    return model.predict(
        latents, torch.linspace(0.1, 0.9, batch_size).double(), normal(batch_size, 3, 8)
    )


def forward_errors(world, num_heads):
    recorder, groups = open_groups(world)
    recorder.keeps_ledger = True
    errors = {}
    with float64_everywhere(), torch.no_grad():
        model = tiny_wan(num_heads)
        plain = {(b, n): velocities(model, b, n) for b in BUCKETS for n in (1, 2)}
        install(model.module, model.layout)
        for (bucket, batch_size), expected in plain.items():
            outside = velocities(model, bucket, batch_size)
            num_meetings = len(recorder.ledger)
            with sequence_parallel(groups.world):
                inside = velocities(model, bucket, batch_size)
            assert torch.equal(outside, expected), "outside the context nothing changes"
            assert num_meetings < len(recorder.ledger), "inside ranks meet"
            recorder.ledger.clear()
            errors[str(bucket), batch_size] = float((inside - expected).abs().max())
    return errors


SIZES = [(2, 3), (3, 4), (4, 5), (4, 3)]
"""World size and heads: uneven heads, and a rank without one."""


@pytest.mark.distributed
@pytest.mark.parametrize(("world_size", "num_heads"), SIZES)
def test_every_rank_gets_the_whole_output(world_size, num_heads):
    for errors in run_ranks(world_size, forward_errors, (num_heads,), timeout_s=30.0):
        assert len(errors) == 2 * len(BUCKETS)
        assert max(errors.values()) < 1e-13, errors


def gradient_error(world, num_heads, dtype, checkpointed):
    """Of all buckets' clips together, over the norm; also the number of collectives."""
    recorder, groups = open_groups(world)
    model = tiny_wan(num_heads, dtype)
    batch = batch_of(list(BUCKETS))
    expected = gradient_of_one_process(model, batch, dtype)
    install(model.module, model.layout)
    if checkpointed:
        model.module.enable_gradient_checkpointing()
    recorder.keeps_ledger = True
    for slot in range(len(batch.clips)):
        with sequence_parallel(groups.world):
            (loss_of(model, batch, (slot,), dtype) / world.size).backward()
    num_collectives = len(recorder.ledger)
    squares = torch.zeros(2, dtype=torch.float64)
    for name, parameter in model.module.named_parameters():
        total = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        collectives.all_reduce_sum(total, groups.world)
        squares[0] += (total - expected[name]).double().pow(2).sum()
        squares[1] += expected[name].double().pow(2).sum()
    return float((squares[0] / squares[1]).sqrt()), num_collectives


def gradient_error_in_float64(world, num_heads, checkpointed):
    with float64_everywhere():
        return gradient_error(world, num_heads, torch.float64, checkpointed)


@pytest.mark.distributed
def test_in_float32_the_gradient_is_one_processs_to_rounding():
    for error, _ in run_ranks(3, gradient_error, (4, torch.float32, False), timeout_s=30.0):
        assert 0.0 < error < 1e-5


@pytest.mark.distributed
@pytest.mark.parametrize(("world_size", "num_heads"), [(2, 3), (4, 3)])
def test_activation_checkpointing_gives_the_same_gradient(world_size, num_heads):
    kept = run_ranks(world_size, gradient_error_in_float64, (num_heads, False), timeout_s=30.0)
    again = run_ranks(world_size, gradient_error_in_float64, (num_heads, True), timeout_s=30.0)
    for (error, num_collectives), (error_again, num_collectives_again) in zip(
        kept, again, strict=True
    ):
        assert error < 1e-12
        assert error_again < 1e-12
        assert num_collectives_again > num_collectives, "attention was not run again"
    assert len({num for _, num in again}) == 1, "ranks met each other differently often"


class _Attention(nn.Module):
    """Two streams attend together, video first; `kind` says how."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.mix = nn.Linear(8, 8, dtype=torch.float64)

    def forward(self, video_BLD, text_BLD):
        joint = self.mix(torch.cat([video_BLD, text_BLD], dim=1))
        query = joint.unflatten(-1, (4, 2)).transpose(1, 2)
        attend = nn.functional.scaled_dot_product_attention
        if self.kind == "mask":
            mixed = attend(
                query, query, query, attn_mask=torch.ones(query.shape[2], query.shape[2])
            )
        elif self.kind == "positional mask":
            mixed = attend(query, query, query, torch.ones(query.shape[2], query.shape[2]))
        elif self.kind == "positional no mask":
            mixed = attend(query, query, query, None, 0.0, scale=0.5)
        elif self.kind == "own kernel":
            mixed = (query @ query.transpose(-1, -2)).softmax(-1) @ query
        else:
            mixed = attend(query, query, query, scale=0.5)
        mixed = mixed.transpose(1, 2).flatten(2)
        return mixed.split([video_BLD.shape[1], text_BLD.shape[1]], dim=1)


class _Joint(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.attention = _Attention(kind)
        self.end = nn.Identity()

    def forward(self, video_BLD, text_BLD):
        video, text = self.attention(video_BLD=video_BLD, text_BLD=text_BLD)
        return self.end(video + text.sum() * 0)


JOINT = SequenceLayout(
    split_inputs=(
        SplitInput(module="attention", argument="video_BLD", stream="video", dim=1),
        SplitInput(module="attention", argument="text_BLD", stream="text", dim=1),
    ),
    split_outputs=(),
    gather=GatherOutput(module="end", stream="video", dim=1),
    self_attention="attention",
    streams=("video", "text"),
)


def joint_attention(world, kind):
    _, groups = open_groups(world)
    torch.manual_seed(0)
    model = _Joint(kind)
    video = torch.randn(2, 7, 8, dtype=torch.float64)
    text = torch.randn(2, 3, 8, dtype=torch.float64)
    model(video, text).pow(2).sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    output = model(video, text).detach()
    model.zero_grad()
    install(model, JOINT)
    with sequence_parallel(groups.world):
        inside = model(video, text)
        (inside.pow(2).sum() / world.size).backward()
    errors = [float((inside.detach() - output).abs().max())]
    for parameter, wanted in zip(model.parameters(), expected, strict=True):
        collectives.all_reduce_sum(parameter.grad, groups.world)
        errors.append(float((parameter.grad - wanted).abs().max()))
    return max(errors)


@pytest.mark.distributed
@pytest.mark.parametrize("kind", ["joint", "positional no mask"])
def test_two_streams_attend_together(kind):
    assert max(run_ranks(3, joint_attention, (kind,), timeout_s=30.0)) < 1e-12


@pytest.mark.distributed
@pytest.mark.parametrize("kind", ["mask", "positional mask"])
def test_an_attention_mask_is_refused(kind):
    with pytest.raises(RuntimeError, match="does not take attention masks yet"):
        run_ranks(2, joint_attention, (kind,), timeout_s=30.0)


@pytest.mark.distributed
def test_attention_that_would_see_a_shard_alone_is_refused():
    with pytest.raises(RuntimeError, match="saw only this rank's tokens"):
        run_ranks(2, joint_attention, ("own kernel",), timeout_s=30.0)


def test_a_layout_that_names_no_module_is_refused():
    layout = SequenceLayout(
        split_inputs=(), split_outputs=(), gather=JOINT.gather, self_attention="x", streams=()
    )
    with pytest.raises(AssertionError, match="no module is named like 'x'"):
        install(_Joint("joint"), layout)
