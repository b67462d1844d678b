"""A model on a part of its sequence gives what the whole model gives, forward and backward."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from arachne.core.errors import ConfigError
from arachne.core.families import WAN
from arachne.core.launch_mode import LaunchMode
from arachne.core.sequence_layout import GatherOutput, SequenceLayout, SplitInput
from arachne.runtime import collectives
from arachne.runtime.attention_split import split_sizes
from arachne.runtime.launcher import run_ranks
from arachne.runtime.sequence_parallel import install, sequence_parallel
from tests.runtime.plans import BUCKETS
from tests.runtime.rank_groups import open_groups
from tests.runtime.tiny_wan import float64_everywhere, tiny_wan


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


class _Attention(nn.Module):
    """Two streams attend together, video first; `kind` says how."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.mix = nn.Linear(8, 8, dtype=torch.float64)
        # In the model's order, all of the video first: the second clip has one token of text.
        self.mask = torch.tensor([[1] * 10, [1] * 8 + [0] * 2]).bool().view(2, 1, 1, 10)

    def forward(self, video_BLD, text_BLD):
        joint = self.mix(torch.cat([video_BLD, text_BLD], dim=1))
        query = joint.unflatten(-1, (4, 2)).transpose(1, 2)
        attend = nn.functional.scaled_dot_product_attention
        if self.kind == "mask":
            mixed = attend(query, query, query, attn_mask=self.mask)
        elif self.kind == "positional mask":
            mixed = attend(query, query, query, self.mask)
        elif self.kind == "causal":
            mixed = attend(query, query, query, is_causal=True)
        elif self.kind == "dropout":
            mixed = attend(query, query, query, None, 0.1)
        elif self.kind == "fewer keys":
            mixed = attend(query, query[:, :, :1], query[:, :, :1])
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
    blocks="attention",
    streams=("video", "text"),
)


def joint_attention(world, kind, ring, num_text=3):
    """The largest error of output and gradients."""
    _, groups = open_groups(world)
    torch.manual_seed(0)
    model = _Joint(kind)
    video = torch.randn(2, 7, 8, dtype=torch.float64)
    text = torch.randn(2, num_text, 8, dtype=torch.float64)
    model(video, text).pow(2).sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    output = model(video, text).detach()
    model.zero_grad()
    install(model, JOINT)
    with sequence_parallel(groups.world, LaunchMode(ring=ring)):
        inside = model(video, text)
        (inside.pow(2).sum() / world.size).backward()
    errors = [float((inside.detach() - output).abs().max())]
    for parameter, wanted in zip(model.parameters(), expected, strict=True):
        collectives.all_reduce_sum(parameter.grad, groups.world)
        errors.append(float((parameter.grad - wanted).abs().max()))
    return max(errors)


@pytest.mark.distributed
@pytest.mark.parametrize("ring", [1, 3])
@pytest.mark.parametrize("kind", ["joint", "positional no mask", "mask", "positional mask"])
def test_two_streams_attend_together(kind, ring):
    assert max(run_ranks(3, joint_attention, (kind, ring), timeout_s=30.0)) < 1e-12


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("causal", "no dropout and no causal mask; found .*causal True"),
        ("dropout", "no dropout and no causal mask; found .*dropout 0.1"),
        ("fewer keys", r"of one shape, .* found \(2, 4, [46], 2\), \(2, 4, 1, 2\)"),
        ("own kernel", "saw only this rank's tokens"),
    ],
)
def test_attention_that_would_be_wrong_is_refused(kind, message):
    with pytest.raises(RuntimeError, match=message):
        run_ranks(2, joint_attention, (kind, 1), timeout_s=30.0)


@pytest.mark.distributed
def test_a_rank_without_a_token_of_the_text_is_refused():
    with pytest.raises(ConfigError, match="stream 'text' has 2 tokens for 3 ranks"):
        run_ranks(3, joint_attention, ("joint", 1, 2), timeout_s=30.0)


@pytest.mark.parametrize("name", ["self_attention", "blocks"])
def test_a_layout_that_names_no_module_is_refused(name):
    with pytest.raises(AssertionError, match="no module is named like 'x'"):
        install(_Joint("joint"), replace(JOINT, **{name: "x"}))
