"""Laws 1 to 4 on real ranks: random plans and modes over a tiny Wan, worlds of 1 to 4 ranks."""

import itertools
from collections import Counter, defaultdict
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from arachne.core.batch import Batch
from arachne.core.blocks import allowed_degrees
from arachne.core.cascade import Cascade
from arachne.core.launch_mode import LaunchMode
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from arachne.core.plan_rules import check_placed_plan
from arachne.core.rank_log import RankLog, trace_from_logs
from arachne.runtime import collectives
from arachne.runtime.clock import clock_for
from arachne.runtime.executor import run_launches
from arachne.runtime.launcher import run_ranks
from arachne.runtime.optimizers import AdamWOptions
from arachne.runtime.process_groups import ProcessGroups
from arachne.runtime.recorder import CollectiveRecord, Recorder
from arachne.runtime.sequence_parallel import install
from arachne.runtime.sharded_optimizer import ShardedOptimizer
from arachne.runtime.world import World
from tests.runtime.meetings import meetings_of
from tests.runtime.plans import BUCKETS, batch_of, batches_and_plans
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
    given_up: list[int] = []
    run_launches(
        plan,
        rank=world.rank,
        groups=groups,
        recorder=recorder,
        work=work,
        give_up=given_up.append,
    )
    assert not given_up
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
    max_examples=2,
    phases=[Phase.generate],  # a failing example that hangs would be shrunk for an hour
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_any_valid_plan_keeps_the_laws(world_size, num_heads, data):
    cases = [data.draw(batches_and_plans(world_size)) for _ in range(5)]
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
        alike = [[replace(r, messages=()) for r in records] for records in members]
        assert all(records == alike[0] for records in alike), "members met in different orders"
        assert all(record.ranks == launch.ranks for records in members for record in records)
        check_both_ends_agree(launch, members)
        counts = meetings_of(launch.mode, degree=launch.degree, num_layers=2)
        if launch.degree > 1:
            counts["all_reduce_max"] = 1  # may all of its ranks go in?
            assert alike[0][0].operation == "all_reduce_max"
        operations = Counter(record.operation for records in members[:1] for record in records)
        assert operations == counts, f"launch {index} did not run in its mode"


def check_both_ends_agree(launch: PlacedLaunch, members: list[list[CollectiveRecord]]) -> None:
    """What one rank sends to another is what that one receives from it, in the same exchange."""
    for exchange in zip(*members, strict=True):
        for source, target in itertools.permutations(launch.ranks, 2):
            seen_by_source, seen_by_target = (
                [m for m in record.messages if (m.source, m.target) == (source, target)]
                for rank in (source, target)
                for record in [exchange[launch.ranks.index(rank)]]
            )
            assert seen_by_source == seen_by_target, "a message that its receiver does not expect"
        for rank, record in zip(launch.ranks, exchange, strict=True):
            assert all(rank in (m.source, m.target) for m in record.messages)


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


EVERYONE = (0, 1, 2)
TWICE = batch_of([BUCKETS[1]] * 2)


def plan_of_two(mode: LaunchMode) -> PlacedPlan:
    """Two launches of one shape on all ranks, one after the other."""
    clip = TWICE.clips[0]
    launches = tuple(
        PlacedLaunch(
            cascade=Cascade(
                module="dit", slots=(slot,), bucket=clip.bucket, num_tokens=clip.num_tokens
            ),
            ranks=EVERYONE,
            start_s=float(slot),
            duration_s=1.0,
            mode=mode,
        )
        for slot in range(2)
    )
    return PlacedPlan(step=0, planner="test", world_size=3, launches=launches)


def run_inverted(world: World, plan: PlacedPlan) -> Outcome:
    """As `run_cases`, but rank 1 runs its launches from the last to the first."""
    if world.rank == 1:
        in_order = PlacedPlan.on_rank
        PlacedPlan.on_rank = lambda self, rank: in_order(self, rank)[::-1]
    (outcome,) = run_cases(world, [(TWICE, plan)], 3)
    return outcome


@pytest.mark.distributed
@pytest.mark.parametrize("ring", [1, 3])
def test_a_rank_that_leaves_the_order_is_caught(ring):
    plan = plan_of_two(LaunchMode(ring=ring))
    inverted = run_ranks(3, run_inverted, (plan,), timeout_s=30.0)
    # The launches are of one shape, so nothing hangs or fails: the sums are wrong in silence.
    assert min(outcome[0] for outcome in inverted) > 1e-3
    with pytest.raises(AssertionError, match="rank 1 left the plan's order"):
        check_nobody_waits_for_strangers(plan, [outcome[2] for outcome in inverted])


@pytest.mark.distributed
def test_meetings_and_messages_in_another_order_are_caught():
    plan = plan_of_two(LaunchMode(ring=3))
    outcomes = [cases[0] for cases in run_ranks(3, run_cases, ([(TWICE, plan)], 3), timeout_s=30.0)]
    ledgers = [outcome[2] for outcome in outcomes]
    check_nobody_waits_for_strangers(plan, ledgers)
    exchanges = [i for i, r in enumerate(ledgers[1]) if r.operation == "exchange"]
    gathering = next(i for i, r in enumerate(ledgers[1]) if r.operation == "all_gather")

    def with_changed(*changes: tuple[int, CollectiveRecord]) -> list[list[CollectiveRecord]]:
        mine = list(ledgers[1])
        for index, record in changes:
            mine[index] = record
        return [ledgers[0], mine, ledgers[2]]

    last = exchanges[-1]
    first, second = exchanges[0], gathering
    swapped = with_changed((first, ledgers[1][second]), (second, ledgers[1][first]))
    with pytest.raises(AssertionError, match="members met in different orders"):
        check_nobody_waits_for_strangers(plan, swapped)
    homeward = next(i for i in exchanges if ledgers[1][i].messages[0].content == "kv gradient")
    for index in (homeward, last):
        other = next(i for i in exchanges if ledgers[1][i].messages != ledgers[1][index].messages)
        wrong = replace(ledgers[1][index], messages=ledgers[1][other].messages)
        with pytest.raises(AssertionError, match="a message that its receiver does not expect"):
            check_nobody_waits_for_strangers(plan, with_changed((index, wrong)))
