"""Compiled blocks: the same gradient on one rank and on two, and as many graphs for any model."""

import pytest
import torch

from arachne.core.bucket import Bucket
from arachne.core.launch_mode import WHOLE, LaunchMode
from arachne.runtime import collectives
from arachne.runtime.launcher import run_ranks
from arachne.runtime.process_groups import RankGroup
from arachne.runtime.sequence_parallel import install, sequence_parallel
from arachne.runtime.world import World
from tests.runtime.plans import BUCKETS, batch_of
from tests.runtime.rank_groups import open_groups, recorder_alone
from tests.runtime.tiny_wan import float64_everywhere, loss_of, tiny_wan

pytestmark = [
    pytest.mark.slow,  # tracing takes most of a minute
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore:The .grad attribute"),  # dynamo looks at it
]

LAUNCHES = (((0,), WHOLE), ((1,), WHOLE), ((2, 3), LaunchMode(recompute_layers=1)), ((4,), WHOLE))
"""Slots and mode of launches of several lengths, one of them of two clips."""


def batch():
    longest = Bucket(width=64, height=64, frames=9)
    return batch_of([BUCKETS[0], BUCKETS[1], BUCKETS[2], BUCKETS[2], longest])


def gradients(group, compiler):
    """Of each launch, flat; summed over the group's ranks by the caller."""
    model = tiny_wan()
    install(model.module, model.layout, compiler=compiler)
    for slots, mode in LAUNCHES:
        model.module.zero_grad()
        with sequence_parallel(group, mode):
            (loss_of(model, batch(), slots, torch.float64) / group.size).backward()
        yield torch.cat([p.grad.flatten() for p in model.module.parameters()])


def test_gradients_are_the_same_and_graphs_do_not_grow_with_blocks_or_lengths():
    from torch._dynamo.testing import CompileCounter

    alone = RankGroup(ranks=(0,), index=0, handle=None, recorder=recorder_alone())
    counter = CompileCounter()
    with float64_everywhere():
        expected = list(gradients(alone, None))
        found = list(gradients(alone, counter))
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-15)
    assert 0 < counter.frame_count <= 24, "a graph for each length or block"


def two_ranks(world: World) -> float:
    """The largest relative error of compiled blocks over the launches, on every rank."""
    _, groups = open_groups(world)
    errors = []
    with float64_everywhere():
        pairs = [list(gradients(groups.of((0, 1)), compiler)) for compiler in (None, "eager")]
    for expected, found in zip(*pairs, strict=True):
        for tensor in (expected, found):
            collectives.all_reduce_sum(tensor, groups.world)
        errors.append(float((expected - found).abs().max() / expected.abs().max()))
    return max(errors)


@pytest.mark.distributed
def test_a_launch_of_two_ranks_has_the_gradient_of_blocks_as_they_are():
    assert max(run_ranks(2, two_ranks, (), timeout_s=300.0)) < 1e-12
