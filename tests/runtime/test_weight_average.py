"""The moving average of the weights is kept in shards, and is that of the whole weights."""

import pytest
import torch

from arachne.runtime.launcher import run_ranks
from arachne.runtime.sharded_optimizer import AVERAGE, ShardedOptimizer
from tests.runtime.rank_groups import open_groups
from tests.runtime.test_optimizers import CHOICES, Parameters, train, values_of

DECAY = 0.3
NUM_STEPS = 6


def averages_by_hand(steps) -> dict[str, torch.Tensor]:
    """From the weights after each step; decays 1/10, 2/11, 3/12, then 0.3."""
    average = steps[0]
    for n, weights in enumerate(steps[1:]):
        decay = min(DECAY, (1 + n) / (10 + n))
        average = {k: decay * average[k] + (1 - decay) * weights[k] for k in weights}
    return average


def run(world, chosen):
    """Weights after each step; then the averages in place of the weights, and back."""
    _, groups = open_groups(world)
    module = Parameters()
    optimizer = ShardedOptimizer(module, groups.world, CHOICES[chosen][0], average_decay=DECAY)
    steps = [values_of(module)]
    for step in range(NUM_STEPS):
        train(world, optimizer, module, [step])
        steps.append(values_of(module))
    optimizer.share(averages=True)
    averages = values_of(module)
    optimizer.share()
    assert all(torch.equal(p, steps[-1][name]) for name, p in module.by_name.items())
    # Loading into a fresh optimizer goes on from there; without averages they begin at the weights.
    state: dict[str, dict[str, torch.Tensor]] = {}
    for piece in optimizer.pieces():
        state.setdefault(piece.kind, {})[piece.name] = piece.values.clone()
    later = []
    for pieces in (state, {kind: v for kind, v in state.items() if kind != AVERAGE}):
        resumed = Parameters()
        again = ShardedOptimizer(resumed, groups.world, CHOICES[chosen][0], average_decay=DECAY)
        again.load(pieces, NUM_STEPS, optimizer.numbers())
        again.share(averages=True)
        later.append(values_of(resumed))
        again.share()
        train(world, again, resumed, [NUM_STEPS])
        after = values_of(resumed)
        again.share(averages=True)
        later.append((after, values_of(resumed)))
    return steps, averages, later


@pytest.mark.distributed
@pytest.mark.parametrize("chosen", ["sgd", "muon"])
@pytest.mark.parametrize("world_size", [1, 3])
def test_averages_follow_every_update_in_shards_and_in_checkpoints(chosen, world_size):
    for steps, averages, later in run_ranks(world_size, run, (chosen,), timeout_s=60.0):
        expected = averages_by_hand(steps)
        loaded, (after, next_average), restarted, (_, restarted_next) = later
        for name, value in averages.items():
            torch.testing.assert_close(value, expected[name], rtol=1e-12, atol=1e-13)
            assert not torch.allclose(value, steps[-1][name]), "the test has to tell them apart"
            assert torch.equal(loaded[name], value)
            assert torch.equal(restarted[name], steps[-1][name])
            for begin, found in ((value, next_average), (steps[-1][name], restarted_next)):
                moved = DECAY * begin + (1 - DECAY) * after[name]
                torch.testing.assert_close(found[name], moved, rtol=1e-12, atol=1e-13)


def without(world):
    _, groups = open_groups(world)
    optimizer = ShardedOptimizer(Parameters(), groups.world, CHOICES["sgd"][0])
    assert AVERAGE not in {piece.kind for piece in optimizer.pieces()}
    with pytest.raises(AssertionError, match="no average"):
        optimizer.share(averages=True)


def test_without_a_decay_there_is_no_average():
    run_ranks(1, without)
