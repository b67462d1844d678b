"""Blocks that are computed again in the backward: which ones, how often, and what is kept."""

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from arachne.core.errors import ConfigError
from arachne.core.launch_mode import LaunchMode
from arachne.runtime.process_groups import RankGroup
from arachne.runtime.recompute import make_recomputable
from arachne.runtime.sequence_parallel import install, sequence_parallel
from tests.runtime.plans import BUCKETS, batch_of
from tests.runtime.rank_groups import recorder_alone
from tests.runtime.tiny_wan import float64_everywhere, loss_of, tiny_wan


def alone() -> RankGroup:
    return RankGroup(ranks=(0,), index=0, handle=None, recorder=recorder_alone())


class Runs:
    """Counts how often the feed-forward layer of each block runs."""

    def __init__(self, model):
        self.counts = [0, 0]
        for index, block in enumerate(model.module.blocks):
            block.ffn.register_forward_hook(lambda *_, index=index: self._count(index))

    def _count(self, index):
        self.counts[index] += 1


def kept_bytes_and_gradients(model, batch, recompute_layers):
    """Of one launch on one rank: what the forward keeps, and what the backward gives."""
    model.module.zero_grad()
    sizes = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with sequence_parallel(alone(), LaunchMode(recompute_layers=recompute_layers)):
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = loss_of(model, batch, (0,), torch.float64)
        loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.module.named_parameters()}
    return sum(sizes.values()), gradients


@pytest.fixture
def wan():
    with float64_everywhere():
        model = tiny_wan()
        install(model.module, model.layout)
        yield model


def test_the_first_blocks_run_twice_and_keep_nothing(wan):
    batch = batch_of([BUCKETS[2]])
    runs = Runs(wan)
    kept_bytes, expected = kept_bytes_and_gradients(wan, batch, 0)
    assert runs.counts == [1, 1]
    for recompute_layers, counts in ((1, [2, 1]), (2, [2, 2]), (5, [2, 2])):
        runs.counts = [0, 0]
        fewer_bytes, gradients = kept_bytes_and_gradients(wan, batch, recompute_layers)
        assert runs.counts == counts
        assert all(torch.equal(gradients[name], expected[name]) for name in expected)
        if recompute_layers <= 2:
            assert fewer_bytes < 0.8 * kept_bytes, "a block's activations were kept all the same"
            kept_bytes = fewer_bytes


def test_nothing_is_computed_again_outside_of_launches_or_without_gradients(wan):
    batch = batch_of([BUCKETS[0]])
    runs = Runs(wan)
    loss_of(wan, batch, (0,), torch.float64).backward()
    assert runs.counts == [1, 1]
    with torch.no_grad(), sequence_parallel(alone(), LaunchMode(recompute_layers=2)):
        loss_of(wan, batch, (0,), torch.float64)
    assert runs.counts == [2, 2]


class MeetingLast(nn.Module):
    """A block that meets other ranks after the last thing that it has to keep."""

    def __init__(self, met):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.met = met

    def forward(self, x):
        y = self.linear(x)
        self.met.append("meeting")
        return y + 1


def test_a_block_meets_the_others_again_even_after_all_it_has_to_keep():
    met = []
    block = MeetingLast(met)
    make_recomputable(block, lambda: True)
    block(torch.ones(2, 3, requires_grad=True)).sum().backward()
    assert met == ["meeting"] * 2


def test_a_model_that_drops_inputs_at_random_is_refused():
    model = tiny_wan()
    model.module.blocks[1].ffn.net[1].p = 0.1
    with pytest.raises(ConfigError, match=r"'blocks.1.ffn.net.1' drops 10 % of its inputs"):
        install(model.module, model.layout)
