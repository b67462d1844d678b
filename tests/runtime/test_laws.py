"""Laws 1 to 4 on real ranks: random valid plans over a tiny Wan, worlds of 1 to 4 ranks."""

import itertools
from collections import defaultdict

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from arachne.core.batch import Batch
from arachne.core.blocks import allowed_degrees
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from arachne.core.plan_rules import check_placed_plan
from arachne.core.rank_log import RankLog, trace_from_logs
from arachne.runtime import collectives
from arachne.runtime.clock import clock_for
from arachne.runtime.executor import run_launches
from arachne.runtime.launcher import run_ranks
from arachne.runtime.process_groups import ProcessGroups
from arachne.runtime.recorder import CollectiveRecord, Recorder
from arachne.runtime.sequence_parallel import install
from arachne.runtime.sharded_optimizer import AdamWOptions, ShardedOptimizer
from arachne.runtime.world import World
from tests.runtime.plans import batches_and_plans
from tests.runtime.tiny_wan import float64_everywhere, gradient_of_one_process, loss_of, tiny_wan

Case = tuple[Batch, PlacedPlan]
Outcome = tuple[float, list[int], list[CollectiveRecord], RankLog]


def run_cases(world: World, cases: list[Case], num_heads: int) -> list[Outcome]:
    """Each plan once: error of the summed gradient, slots trained, ledger, log."""
    recorder = Recorder(rank=world.rank, world_size=world.size, clock=clock_for(world.device))
    groups = ProcessGroups(world, allowed_degrees(world.size, world.size), recorder)
    recorder.finish(step=0, planner="")
    recorder.keeps_ledger = True
    outcomes: list[Outcome] = []
    with float64_everywhere():
        model = tiny_wan(num_heads)
        install(model.module, model.layout)
        optimizer = ShardedOptimizer(model.module, groups.world, AdamWOptions())
        for batch, plan in cases:
            outcomes.append(_run(world, groups, recorder, model, optimizer, batch, plan))
    return outcomes


def _run(world, groups, recorder, model, optimizer, batch, plan) -> Outcome:
    expected = gradient_of_one_process(model, batch, torch.float64)
    trained: list[int] = []
    recorder.ledger.clear()

    def work(launch: PlacedLaunch) -> None:
        trained.extend(launch.cascade.slots)
        (loss_of(model, batch, launch.cascade.slots, torch.float64) / launch.degree).backward()

    optimizer.clear_gradients()
    run_launches(plan, rank=world.rank, groups=groups, recorder=recorder, work=work)
    squared_error = squared_norm = torch.zeros((), dtype=torch.float64)
    for name, gradient in optimizer.gradients():
        total = gradient.clone()
        collectives.all_reduce_sum(total, groups.world)
        squared_error = squared_error + (total - expected[name].reshape(-1)).pow(2).sum()
        squared_norm = squared_norm + expected[name].pow(2).sum()
    log = recorder.finish(step=plan.step, planner=plan.planner)
    return float((squared_error / squared_norm).sqrt()), trained, list(recorder.ledger), log


@pytest.mark.distributed
@pytest.mark.parametrize(("world_size", "num_heads"), [(1, 3), (2, 3), (3, 4), (4, 3)])
@settings(
    max_examples=5,
    phases=[Phase.generate],  # a failing example that hangs would be shrunk for an hour
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_any_valid_plan_keeps_the_laws(world_size, num_heads, data):
    cases = [data.draw(batches_and_plans(world_size)) for _ in range(4)]
    for batch, plan in cases:
        check_placed_plan(plan, batch, world_size)

    by_rank = run_ranks(world_size, run_cases, (cases, num_heads), timeout_s=30.0)

    for (batch, plan), *outcomes in zip(cases, *by_rank, strict=True):
        assert max(outcome[0] for outcome in outcomes) < 1e-12, "law 2: plan invariance"
        check_coverage(batch, plan, [outcome[1] for outcome in outcomes])
        check_nobody_waits_for_strangers(plan, [outcome[2] for outcome in outcomes])
        check_trace(plan, [outcome[3] for outcome in outcomes])


def check_coverage(batch: Batch, plan: PlacedPlan, trained_by_rank: list[list[int]]) -> None:
    """Law 1: every clip is trained exactly once, by as many ranks as its launch has."""
    ranks_of_slot = {s: launch.ranks for launch in plan.launches for s in launch.cascade.slots}
    for slot in range(len(batch.clips)):
        counts = [trained.count(slot) for trained in trained_by_rank]
        expected = [int(rank in ranks_of_slot[slot]) for rank in range(plan.world_size)]
        assert counts == expected


def check_nobody_waits_for_strangers(
    plan: PlacedPlan, ledgers: list[list[CollectiveRecord]]
) -> None:
    """Laws 3 and 4: inside a launch only its ranks meet, all in the same order, in plan order."""
    by_launch: dict[int, list[list[CollectiveRecord]]] = defaultdict(list)
    for rank, ledger in enumerate(ledgers):
        in_launches = [record for record in ledger if record.launch is not None]
        launches = [record.launch for record in in_launches]
        assert launches == sorted(launches), f"rank {rank} left the plan's order"
        last = max((i for i, r in enumerate(ledger) if r.launch is not None), default=-1)
        assert all(r.launch is not None for r in ledger[: last + 1]), "a meeting of strangers"
        for index, records in itertools.groupby(in_launches, key=lambda record: record.launch):
            by_launch[index].append(list(records))
    for index, launch in enumerate(plan.launches):
        members = by_launch[index]
        assert len(members) == (launch.degree if launch.degree > 1 else 0)
        assert all(records == members[0] for records in members)
        assert all(record.ranks == launch.ranks for records in members for record in records)


def check_trace(plan: PlacedPlan, logs: list[RankLog]) -> None:
    """The executor's trace covers every launch on every rank, without overlap on a rank."""
    trace = trace_from_logs(logs)
    assert 0.0 <= trace.idle_ratio <= 1.0
    for rank in range(plan.world_size):
        mine = [span for span in trace.spans if span.rank == rank]
        assert {i for i, _ in plan.on_rank(rank)} == {
            span.launch for span in mine if span.launch is not None
        }
        assert all(a.end_s <= b.start_s + 1e-9 for a, b in itertools.pairwise(mine))
