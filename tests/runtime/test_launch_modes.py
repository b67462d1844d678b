"""A whole model in every launch mode gives the gradient of one process."""

import itertools
import warnings
from collections import Counter
from statistics import fmean

import pytest
import torch

from arachne.core.launch_mode import LaunchMode
from arachne.runtime import collectives
from arachne.runtime.launcher import run_ranks
from arachne.runtime.sequence_parallel import install, sequence_parallel
from tests.runtime.meetings import meetings_of
from tests.runtime.plans import BUCKETS, batch_of
from tests.runtime.rank_groups import open_groups
from tests.runtime.tiny_wan import float64_everywhere, gradient_of_one_process, loss_of, tiny_wan

# Two clips of 2 tokens stacked, fewer tokens than most launches have ranks; and 18 tokens.
BATCH = batch_of([BUCKETS[0], BUCKETS[0], BUCKETS[1]])
LAUNCHES = ((0, 1), (2,))


def modes(degree, recompute_layers):
    rings = [ring for ring in range(1, degree + 1) if degree % ring == 0]
    pairs = itertools.product(rings, recompute_layers)
    return [LaunchMode(ring=ring, recompute_layers=layers) for ring, layers in pairs]


def errors_of_modes(world, num_heads, recompute_layers):
    with float64_everywhere():
        return _errors_of_modes(world, tiny_wan(num_heads), recompute_layers, torch.float64)


def _errors_of_modes(world, model, recompute_layers, dtype):
    """By mode: error of the gradient over its norm, and the collectives in order."""
    recorder, groups = open_groups(world)
    recorder.keeps_ledger = True
    expected = gradient_of_one_process(model, BATCH, dtype)
    install(model.module, model.layout)
    outcomes = {}
    for mode in modes(world.size, recompute_layers):
        recorder.ledger.clear()
        model.module.zero_grad()
        for slots in LAUNCHES:
            with sequence_parallel(groups.world, mode):
                (loss_of(model, BATCH, slots, dtype) / world.size).backward()
        operations = [record.operation for record in recorder.ledger]
        outcomes[mode] = relative_error(model, expected, groups.world), operations
    return outcomes


def relative_error(model, expected, group):
    squares = torch.zeros(2, dtype=torch.float64)
    for name, parameter in model.module.named_parameters():
        total = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        collectives.all_reduce_sum(total, group)
        squares[0] += (total - expected[name]).double().pow(2).sum()
        squares[1] += expected[name].double().pow(2).sum()
    return float((squares[0] / squares[1]).sqrt())


def check(outcomes, num_modes):
    assert len(outcomes[0]) == num_modes
    for mode in outcomes[0]:
        counts = meetings_of(mode, degree=len(outcomes), num_layers=2)
        for of_rank in outcomes:
            error, operations = of_rank[mode]
            assert error < 1e-12, mode
            assert Counter(operations) == counts + counts, "one for each launch"
            assert operations == outcomes[0][mode][1], "members met differently"


@pytest.mark.distributed
@pytest.mark.parametrize(("world_size", "num_heads"), [(1, 3), (2, 3), (3, 4), (4, 3)])
def test_every_mode_gives_the_gradient_of_one_process(world_size, num_heads):
    outcomes = run_ranks(world_size, errors_of_modes, (num_heads, (0, 1, 2)), timeout_s=30.0)
    check(outcomes, {1: 3, 2: 6, 3: 6, 4: 9}[world_size])


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize(("world_size", "num_modes"), [(6, 8), (12, 12)])
def test_every_mode_of_many_ranks_gives_the_gradient_of_one_process(world_size, num_modes):
    outcomes = run_ranks(world_size, errors_of_modes, (5, (0, 1)), timeout_s=90.0)
    check(outcomes, num_modes)


def errors_in_float32(world):
    return _errors_of_modes(world, tiny_wan(4, torch.float32), (0, 1), torch.float32)


@pytest.mark.distributed
def test_in_float32_the_gradient_is_one_processs_to_rounding():
    for outcomes in run_ranks(3, errors_in_float32, timeout_s=30.0):
        assert all(0.0 < error < 1e-5 for error, _ in outcomes.values()), outcomes


def summed_in_float32(model, batch, dtype, launch):
    """The gradient of all clips, one after the other, summed as the gradient buffers do."""
    sums = {name: torch.zeros(p.shape) for name, p in model.module.named_parameters()}
    for slot in range(len(batch.clips)):
        model.module.zero_grad()
        launch(lambda slot=slot: loss_of(model, batch, (slot,), dtype))
        for name, parameter in model.module.named_parameters():
            if parameter.grad is not None:
                sums[name] += parameter.grad
    return sums


BATCHES = {torch.bfloat16: batch_of([*BUCKETS, *BUCKETS]), torch.float32: batch_of([*BUCKETS])}
"""By the weights' type; fewer under autocast, so that the suite stays short."""
NUM_SEEDS = 8


def errors_in_bfloat16(world, dtype):
    """By seed, of each ring: the error against float32, over that of one process in bfloat16.

    Weights are in bfloat16, or in float32 under autocast, as `dtype` says.
    """
    _, groups = open_groups(world)
    exact, model = tiny_wan(4, torch.float32), tiny_wan(4, dtype)
    install(model.module, model.layout)
    return [ratios_of_seed(seed, exact, model, groups.world) for seed in range(NUM_SEEDS)]


def ratios_of_seed(seed, exact, model, group):
    """Both models get the same random weights, which bfloat16 holds."""
    dtype = next(model.module.parameters()).dtype
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for ours, theirs in zip(exact.module.parameters(), model.module.parameters(), strict=True):
            noise = torch.randn(theirs.shape, generator=generator)
            theirs.copy_((theirs + 0.02 * noise).bfloat16())
            ours.copy_(theirs)
    batch = BATCHES[dtype]
    expected = summed_in_float32(exact, batch, torch.float32, lambda loss: loss().backward())

    def in_bfloat16(loss):
        with (
            torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32),
            warnings.catch_warnings(),
        ):
            warnings.filterwarnings("ignore", "Mismatch dtype between input and weight")  # slower
            return loss()

    alone = summed_in_float32(model, batch, dtype, lambda loss: in_bfloat16(loss).backward())

    def error(sums):
        return torch.stack([(sums[n] - expected[n]).pow(2).sum() for n in sums]).sum().sqrt()

    ratios = []
    for mode in modes(group.size, (0,)):

        def together(loss, mode=mode):
            with sequence_parallel(group, mode):
                (in_bfloat16(loss) / group.size).backward()

        sums = summed_in_float32(model, batch, dtype, together)
        for total in sums.values():
            collectives.all_reduce_sum(total, group)
        ratios.append(float(error(sums) / error(alone)))
    return ratios


def check_in_bfloat16(world_size, num_modes, dtype=torch.bfloat16):
    for by_seed in run_ranks(world_size, errors_in_bfloat16, (dtype,), timeout_s=60.0):
        assert len(by_seed) == NUM_SEEDS
        assert len(by_seed[0]) == num_modes
        assert all(0.5 < fmean(ratios) < 1.1 for ratios in zip(*by_seed, strict=True)), by_seed


@pytest.mark.distributed
def test_in_bfloat16_the_mean_error_is_at_most_a_tenth_above_one_processs():
    check_in_bfloat16(2, 2)


@pytest.mark.distributed
def test_under_autocast_the_mean_error_is_at_most_a_tenth_above_one_processs():
    check_in_bfloat16(2, 2, torch.float32)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize(("world_size", "num_modes"), [(3, 2), (4, 3)])
def test_in_bfloat16_the_mean_error_of_more_ranks_is_no_larger(world_size, num_modes):
    check_in_bfloat16(world_size, num_modes)
