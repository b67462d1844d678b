"""Sharded AdamW is AdamW: on any number of ranks, with any share of the work on each."""

import math

import pytest
import torch
from torch import nn

from arachne.runtime import buckets, collectives
from arachne.runtime.launcher import run_ranks
from arachne.runtime.optimizers import AdamWOptions
from arachne.runtime.sharded_optimizer import ShardedOptimizer
from tests.runtime.rank_groups import open_groups

pytestmark = pytest.mark.distributed

SHAPES = {"a": (3, 5), "b": (7,), "c": (2, 3, 2), "d": ()}
FROZEN = "frozen"
OPTIONS = AdamWOptions(weight_decay=0.1)
MOMENTS = ("exp_avg", "exp_avg_sq")
CLIP = 0.5
NUM_PASSES = 5
"""Backward passes of a step, over all ranks; rank 0 has most of them, the last rank none."""


def module_of(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    module = nn.Module()
    for name, shape in {**SHAPES, FROZEN: (4,)}.items():
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        parameter = nn.Parameter(values.to(dtype), requires_grad=name != FROZEN)
        module.register_parameter(name, parameter)
    return module


def loss_of(module, step, number):
    """One backward pass; its gradients depend on the parameters, and reach `frozen` too."""
    generator = torch.Generator().manual_seed(100 * step + number)
    total = module.frozen.sum() * 0
    for name in SHAPES:
        parameter = module.get_parameter(name)
        target = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        total = total + (parameter - target.to(parameter.dtype)).pow(2).sum() * module.frozen[0]
    return total


def passes_of_rank(rank, size):
    if size == 1:
        return range(NUM_PASSES)
    return [n for n in range(NUM_PASSES) if min(n // 3, size - 2) == rank]


def train(world, optimizer, module, steps):
    for step in steps:
        for number in passes_of_rank(world.rank, world.size):
            loss_of(module, step, number).backward()
        optimizer.reduce()
        squared = optimizer.squared_norm_of_shard()
        collectives.all_reduce_sum(squared, optimizer.group)
        scale = min(1.0, CLIP / math.sqrt(float(squared)))
        optimizer.step(lr=0.1 / (step + 1), gradient_scale=scale)
        optimizer.share()
        optimizer.clear_gradients()


def values_of(module):
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def pieces_of(optimizer):
    return [(p.name, p.kind, p.offset, p.values.clone()) for p in optimizer.pieces()]


def train_sharded(world, bucket_bytes):
    if bucket_bytes:
        buckets._BUCKET_BYTES = bucket_bytes
    _, groups = open_groups(world)
    module = module_of()
    optimizer = ShardedOptimizer(module, groups.world, OPTIONS)
    storages = {name: module.get_parameter(name).grad.data_ptr() for name in SHAPES}
    train(world, optimizer, module, range(3))
    for name, pointer in storages.items():
        gradient = module.get_parameter(name).grad
        assert gradient.data_ptr() == pointer, "backward no longer adds into the buffer"
        assert not gradient.any(), "gradients were not cleared"
    assert module.frozen.grad is None
    assert optimizer.shapes == SHAPES
    return values_of(module), pieces_of(optimizer)


def train_alone(steps=3):
    module = module_of()
    trained = [p for p in module.parameters() if p.requires_grad]
    adamw = torch.optim.AdamW(
        trained, lr=0.0, betas=OPTIONS.betas, eps=OPTIONS.eps, weight_decay=OPTIONS.weight_decay
    )
    for step in range(steps):
        for number in range(NUM_PASSES):
            loss_of(module, step, number).backward()
        norm = torch.stack([p.grad.norm() for p in trained]).norm()
        assert norm > CLIP, "the test has to clip"
        for parameter in trained:
            parameter.grad.mul_(CLIP / norm)
        adamw.param_groups[0]["lr"] = 0.1 / (step + 1)
        adamw.step()
        adamw.zero_grad()
    return values_of(module)


@pytest.mark.parametrize("bucket_bytes", [0, 70])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_several_steps_equal_adamw_on_one_process(world_size, bucket_bytes):
    expected = train_alone()
    for values, _ in run_ranks(world_size, train_sharded, (bucket_bytes,), timeout_s=15.0):
        for name, value in values.items():
            difference = (value - expected[name]).norm() / expected[name].norm()
            assert float(difference) < 1e-12, name


@pytest.mark.parametrize("bucket_bytes", [0, 70])
@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_pieces_tile_every_parameter_and_hold_its_values(world_size, bucket_bytes):
    by_rank = run_ranks(world_size, train_sharded, (bucket_bytes,), timeout_s=15.0)
    values = by_rank[0][0]
    for kind in ("master", *MOMENTS):
        for name, shape in SHAPES.items():
            covered = torch.zeros(math.prod(shape), dtype=torch.int64)
            joined = torch.zeros(math.prod(shape), dtype=torch.float64)
            for _, pieces in by_rank:
                for piece_name, piece_kind, offset, piece in pieces:
                    if (piece_name, piece_kind) == (name, kind):
                        covered[offset : offset + len(piece)] += 1
                        joined[offset : offset + len(piece)] = piece
            assert covered.tolist() == [1] * math.prod(shape)
            if kind == "master":
                assert torch.equal(joined, values[name].reshape(-1))
            else:
                assert joined.abs().min() > 0, "a moment of every element"
    assert {name for _, pieces in by_rank for name, *_ in pieces} == set(SHAPES)


def resume(world, state, num_updates, num_steps_before):
    """Load on top of other values, share, then one more step."""
    _, groups = open_groups(world)
    module = module_of()
    optimizer = ShardedOptimizer(module, groups.world, OPTIONS)
    train(world, optimizer, module, range(num_steps_before))
    pieces = {
        kind: {
            name: tensors[name].reshape(-1)[start:stop]
            for name, start, stop in optimizer.owned_ranges()
        }
        for kind, tensors in state.items()
    }
    optimizer.load(pieces, num_updates)
    optimizer.share()
    loaded = values_of(module)
    train(world, optimizer, module, [3])
    return loaded, values_of(module)


def whole_state(by_rank):
    state = {kind: {} for kind in ("master", *MOMENTS)}
    for _, pieces in by_rank:
        for name, kind, offset, piece in pieces:
            whole = state[kind].setdefault(name, torch.zeros(math.prod(SHAPES[name])).double())
            whole[offset : offset + len(piece)] = piece
    return state


@pytest.mark.parametrize(("saved_on", "loaded_on"), [(3, 2), (2, 3), (3, 1)])
def test_state_of_one_world_goes_on_in_another(saved_on, loaded_on):
    by_rank = run_ranks(saved_on, train_sharded, (0,), timeout_s=15.0)
    after_four_steps = train_alone(steps=4)
    for loaded, trained in run_ranks(loaded_on, resume, (whole_state(by_rank), 3, 2)):
        for name, value in by_rank[0][0].items():
            assert torch.equal(loaded[name], value), name
        for name, value in after_four_steps.items():
            assert float((trained[name] - value).norm() / value.norm()) < 1e-12, name


def test_state_before_the_first_update_forgets_older_moments():
    start = {"master": values_of(module_of())}
    state = start | dict.fromkeys(MOMENTS, start["master"])
    (_, fresh), (_, used) = (run_ranks(1, resume, (state, 0, before))[0] for before in (0, 2))
    for name in SHAPES:
        assert torch.equal(fresh[name], used[name]), name


def train_bfloat16(world):
    _, groups = open_groups(world)
    module = module_of(torch.bfloat16)
    before = values_of(module)
    optimizer = ShardedOptimizer(module, groups.world, AdamWOptions(weight_decay=0.0))
    for _ in range(300):
        (module.b * torch.full((7,), 1.0 + 2**-7).bfloat16()).sum().backward()
    assert module.b.grad is None, "the hook hands its gradient over"
    sums = {name: gradient.clone() for name, gradient in optimizer.gradients()}
    optimizer.reduce()
    for _ in range(50):
        optimizer.step(lr=1e-5)
    optimizer.share()
    return before, sums, values_of(module), pieces_of(optimizer)


def test_bfloat16_parameters_have_float32_sums_and_masters():
    by_rank = run_ranks(2, train_bfloat16, timeout_s=15.0)
    for before, sums, values, _ in by_rank:
        assert sums["b"].dtype == torch.float32
        assert sums["b"].tolist() == [300 * (1.0 + 2**-7)] * 7, "bfloat16 would stop at 256"
        assert not sums["a"].any()
        for name, value in values.items():
            assert value.dtype == torch.bfloat16
            assert torch.equal(value, by_rank[0][2][name]), "ranks differ"
        masters = torch.zeros(7)
        for _, _, _, pieces in by_rank:
            for name, kind, offset, piece in pieces:
                assert piece.dtype == torch.float32
                if (name, kind) == ("b", "master"):
                    masters[offset : offset + len(piece)] = piece
        # Each update is far below bfloat16's spacing; together they are not lost.
        torch.testing.assert_close(masters, before["b"].float() - 50e-5, rtol=0, atol=2e-6)
        assert torch.equal(values["b"], masters.bfloat16())


def accumulated(world):
    _, groups = open_groups(world)
    module = module_of()
    optimizer = ShardedOptimizer(module, groups.world, OPTIONS)
    loss_of(module, 0, 0).backward()
    local = {name: g.clone() for name, g in optimizer.gradients()}
    assert all(not shard.any() for shard in optimizer.gradient_shards())
    optimizer.reduce()
    return local, torch.cat(optimizer.gradient_shards()), optimizer.squared_norm_of_shard()


def test_gradients_are_local_until_they_are_reduced():
    by_rank = run_ranks(2, accumulated, timeout_s=15.0)
    whole = torch.cat([by_rank[0][0][name] for name in SHAPES])
    shards = torch.cat([shard for _, shard, _ in by_rank])
    torch.testing.assert_close(shards[: len(whole)], 2 * whole, rtol=1e-15, atol=0)
    assert not shards[len(whole) :].any()
    squared_norm = sum(float(squared) for _, _, squared in by_rank)
    assert squared_norm == pytest.approx(float((2 * whole).pow(2).sum()))
