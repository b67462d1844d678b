"""AdamW with moments of a byte each: near AdamW, and its state travels as AdamW's."""

from importlib.util import find_spec

import pytest
import torch
from torch import nn

from arachne.core.errors import ConfigError
from arachne.runtime import eight_bit
from arachne.runtime.launcher import run_ranks
from arachne.runtime.optimizers import AdamWOptions
from arachne.runtime.sharded_optimizer import ShardedOptimizer
from tests.runtime.rank_groups import open_groups

needs_bitsandbytes = pytest.mark.skipif(
    find_spec("bitsandbytes") is None, reason="the extra eight-bit is not installed"
)
EIGHT_BIT = AdamWOptions(weight_decay=0.1, decay_1d=False, has_8bit_moments=True)
SHAPES = {"matrix": (150, 120), "bias": (40,)}
"""In blocks of 256, of which a second rank's begin elsewhere than a third's; and a short rest."""


def module_of() -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    module = nn.Module()
    for name, shape in SHAPES.items():
        values = torch.randn(shape, generator=generator)
        module.register_parameter(name, nn.Parameter(values))
    return module


def train(world, optimizer, module, steps):
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for name, parameter in module.named_parameters():
            gradient = torch.randn(SHAPES[name], generator=generator)
            if world.rank == 0:
                (parameter * gradient).sum().backward()
        optimizer.reduce()
        optimizer.step(lr=1e-3)
        optimizer.share()
        optimizer.clear_gradients()
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def train_sharded(world, choice):
    _, groups = open_groups(world)
    module = module_of()
    optimizer = ShardedOptimizer(module, groups.world, choice)
    first = [p.values.clone() for p in optimizer.pieces()]
    values = train(world, optimizer, module, range(4))
    pieces = [(p.name, p.kind, p.offset, p.values.clone()) for p in optimizer.pieces()]
    assert all(not v.any() for v, p in zip(first, pieces, strict=True) if p[1] != "master")
    return values, pieces, optimizer.numbers(), train(world, optimizer, module, [4])


def resume(world, choice, state, numbers):
    _, groups = open_groups(world)
    module = module_of()
    optimizer = ShardedOptimizer(module, groups.world, choice)
    pieces = {
        kind: {n: tensors[n][start:stop] for n, start, stop in optimizer.owned_ranges()}
        for kind, tensors in state.items()
    }
    optimizer.load(pieces, 4, numbers)
    optimizer.share()
    return train(world, optimizer, module, [4])


def joined(by_rank):
    whole = {}
    for _, pieces, _, _ in by_rank:
        for name, kind, offset, values in pieces:
            size = torch.Size(SHAPES[name]).numel()
            into = whole.setdefault(kind, {}).setdefault(name, torch.zeros(size))
            assert values.dtype == torch.float32
            into[offset : offset + len(values)] = values
    return whole


def off(found, expected) -> float:
    """Difference of two updates, over the update: weights start equal."""
    start = dict(module_of().named_parameters())["matrix"].detach()
    update = (expected["matrix"] - start).norm()
    return float((found["matrix"] - expected["matrix"]).norm() / update)


@needs_bitsandbytes
@pytest.mark.distributed
def test_8bit_moments_train_nearly_as_adamw_and_their_state_goes_anywhere():
    eight_bit.adamw_8bit(torch.float32)  # imported once, before ranks are forked
    plain = AdamWOptions(weight_decay=0.1, decay_1d=False)
    exact = run_ranks(1, train_sharded, (plain,), timeout_s=60.0)[0]
    by_world = {n: run_ranks(n, train_sharded, (EIGHT_BIT,), timeout_s=60.0) for n in (1, 2, 3)}
    for by_rank in by_world.values():
        for values, _, numbers, _ in by_rank:
            assert 1e-5 < off(values, exact[0]) < 0.03, "levels are up to 2 % apart"
            assert torch.allclose(values["bias"], exact[0]["bias"], atol=1e-7)
            assert numbers == {"step": 4.0}
    by_rank = by_world[2]
    state, numbers = joined(by_rank), by_rank[0][2]
    assert set(state) == {"master", "exp_avg", "exp_avg_sq"}
    later = by_rank[0][3]
    for world_size, choice in ((2, EIGHT_BIT), (3, EIGHT_BIT), (1, plain)):
        other = run_ranks(world_size, resume, (choice, state, numbers), timeout_s=60.0)[0]
        assert off(other, later) < 0.01, "a quarter of a level, in one of five steps"


def test_weights_that_it_cannot_update_are_refused():
    with pytest.raises(ConfigError, match=r"'adamw8bit' updates float32 weights; .* torch.float64"):
        EIGHT_BIT.rules(torch.float64)


def test_a_missing_package_is_named_with_the_command_that_brings_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "bitsandbytes.optim", None)
    with pytest.raises(ConfigError, match=r"pip install 'arachne\[eight-bit\]'"):
        eight_bit.adamw_8bit(torch.float32)
