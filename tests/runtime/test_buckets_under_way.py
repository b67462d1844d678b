"""Buckets that are reduced, updated and shared closely after each other change no bit.

All ranks start and await them in one order.
"""

import pytest
import torch

from arachne.runtime import buckets, collectives
from arachne.runtime.launcher import run_ranks
from arachne.runtime.sharded_optimizer import ShardedOptimizer
from tests.runtime.rank_groups import open_groups
from tests.runtime.test_optimizers import CHOICES, Parameters, values_of

pytestmark = pytest.mark.distributed

NUM_STEPS = 3
ADAMW = "no decay of 1-D"


def run(world, chosen, most_under_way, is_in_one_go):
    """Weights after some steps in many buckets; the ledger; what began and ended, in order."""
    buckets._BUCKET_BYTES = 70
    collectives.MOST_UNDER_WAY = most_under_way
    recorder, groups = open_groups(world)
    recorder.keeps_ledger = True
    order: list[str] = []
    issued, wait = recorder.issued, collectives.Transfer.wait

    def noted_issue(operation, *arguments, **named):
        order.append(f"start {operation}")
        issued(operation, *arguments, **named)

    def noted_wait(self):
        order.append("wait")
        wait(self)

    module = Parameters()
    optimizer = ShardedOptimizer(module, groups.world, CHOICES[chosen][0])
    recorder.issued, collectives.Transfer.wait = noted_issue, noted_wait
    for step in range(NUM_STEPS):
        generator = torch.Generator().manual_seed(10 * step + world.rank)
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            (parameter * noise.to(parameter.dtype)).sum().backward()
        optimizer.reduce()
        if is_in_one_go:
            optimizer.step_and_share(lr=0.1, gradient_scale=0.5)
            optimizer.settle()
        else:
            optimizer.step(lr=0.1, gradient_scale=0.5)
            optimizer.share()
        optimizer.clear_gradients()
    return values_of(module), recorder.ledger, order


@pytest.mark.parametrize("chosen", [ADAMW, "muon"])
@pytest.mark.parametrize("world_size", [2, 3])
def test_overlapping_changes_no_bit_and_all_ranks_meet_in_one_order(world_size, chosen):
    one_by_one = run_ranks(world_size, run, (chosen, 1, False), timeout_s=30.0)
    closely = run_ranks(world_size, run, (chosen, 2, True), timeout_s=30.0)
    for values, ledger, _ in closely:
        assert all(torch.equal(value, one_by_one[0][0][name]) for name, value in values.items())
        assert ledger == closely[0][1]
        assert {record.ranks for record in ledger} == {tuple(range(world_size))}
        assert {record.launch for record in ledger} == {None}


def most_under_way(order: list[str]) -> int:
    under_way, most = 0, 0
    for event in order:
        under_way += -1 if event == "wait" else 1
        most = max(most, under_way)
    assert under_way == 0, "something was never awaited"
    return most


def test_two_buckets_are_under_way_and_never_more():
    (_, ledger, order), _ = run_ranks(2, run, (ADAMW, 2, True), timeout_s=30.0)
    assert most_under_way(order) == 2
    assert sum(event != "wait" for event in order) == len(ledger)
    num_buckets = len(ledger) // (2 * NUM_STEPS)
    assert num_buckets > 2
    operations = [record.operation for record in ledger][: 2 * num_buckets]
    assert operations == ["reduce_scatter"] * num_buckets + ["all_gather"] * num_buckets


def several_gathers(world):
    """Three all-gathers of different sizes at once, beside each other's messages."""
    _, groups = open_groups(world)
    mine = [torch.full((size,), float(10 * world.rank + size)) for size in (3, 1, 2)]
    gathered = [torch.empty(world.size * len(each)) for each in mine]
    started = [
        collectives.start_all_gather(whole, part, groups.world)
        for whole, part in zip(gathered, mine, strict=True)
    ]
    for transfer in started:
        transfer.wait()
    return [each.tolist() for each in gathered]


def test_messages_of_collectives_under_way_are_not_taken_for_each_other():
    for gathered in run_ranks(3, several_gathers, timeout_s=15.0):
        assert gathered == [
            [float(10 * rank + size) for rank in range(3) for _ in range(size)]
            for size in (3, 1, 2)
        ]


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.zeros(4))

    def forward(self, values):
        return (self.scale * values).sum()


def forward_after_update(world):
    _, groups = open_groups(world)
    module = Scaled()
    optimizer = ShardedOptimizer(module, groups.world, CHOICES["sgd"][0])
    module(torch.ones(4)).backward()
    optimizer.reduce()
    awaited: list[bool] = []
    wait = collectives.Transfer.wait

    def noted_wait(self):
        awaited.append(True)
        wait(self)

    collectives.Transfer.wait = noted_wait
    optimizer.step_and_share(lr=1.0)
    before = list(awaited)
    total = float(module(torch.ones(4)).detach())
    return before, awaited, total, module.scale.tolist()


def test_a_forward_pass_awaits_the_parameters_that_are_on_their_way():
    for before, awaited, total, values in run_ranks(2, forward_after_update, timeout_s=15.0):
        assert before == [], "the only bucket is left on its way"
        assert awaited == [True]
        assert len(set(values)) == 1, "both ranks' halves moved alike"
        assert total == sum(values) < 0.0
