"""What encoders make reaches exactly the ranks that train on it; nobody waits for strangers."""

import itertools
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

import pytest
import torch

from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade, Encoder, Module
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from arachne.core.rank_log import RankLog, trace_from_logs
from arachne.runtime.emulation import meet
from arachne.runtime.executor import run_launches
from arachne.runtime.handoff import Handoffs
from arachne.runtime.handoff_routes import Route, routes_of
from arachne.runtime.launcher import run_ranks
from arachne.runtime.process_groups import ProcessGroups
from arachne.runtime.recorder import CollectiveRecord, Recorder
from arachne.runtime.world import World
from tests.runtime.dag_plans import two_steps
from tests.runtime.rank_groups import open_groups

CLIP = Bucket(width=64, height=48, frames=9)
Pair = tuple[PlacedPlan, PlacedPlan | None]


def launch(
    module: Module, *slots: int, ranks: tuple[int, ...], start_s: float, steps_ahead: int = 0
) -> PlacedLaunch:
    cascade = Cascade(
        module=module, slots=slots, bucket=CLIP, num_tokens=36, steps_ahead=steps_ahead
    )
    return PlacedLaunch(cascade=cascade, ranks=ranks, start_s=start_s, duration_s=1.0)


def plan_of(*launches: PlacedLaunch, step: int = 4, world_size: int = 3) -> PlacedPlan:
    return PlacedPlan(step=step, planner="test", world_size=world_size, launches=launches)


def test_a_result_travels_to_all_ranks_that_train_on_it_but_its_maker():
    plan = plan_of(
        launch("vae", 0, 2, ranks=(1,), start_s=0.0),
        launch("text", 0, ranks=(2,), start_s=0.0),
        launch("dit", 0, ranks=(0, 1), start_s=2.0),
        launch("dit", 2, ranks=(1,), start_s=3.0),
    )
    assert [
        (r.step, r.module, r.slot, r.encoder, r.trainer, r.source, r.receivers)
        for r in routes_of(plan, None)
    ] == [
        (4, "vae", 0, 0, 2, 1, (0,)),
        (4, "vae", 2, 0, 3, 1, ()),
        (4, "text", 0, 1, 2, 2, (0, 1)),
    ]


def test_a_result_for_the_next_step_goes_where_the_next_plan_trains_it():
    plan = plan_of(launch("vae", 0, ranks=(1,), start_s=0.0, steps_ahead=1))
    next_plan = plan_of(
        launch("dit", 1, ranks=(0,), start_s=0.0),
        launch("dit", 0, ranks=(1, 2), start_s=1.0),
        step=5,
    )
    (route,) = routes_of(plan, next_plan)
    assert route == Route(
        step=5, module="vae", slot=0, bucket=CLIP, encoder=0, trainer=1, makers=(1,), targets=(1, 2)
    )


def test_what_several_ranks_made_together_is_there_for_each_and_sent_by_the_first():
    plan = plan_of(
        launch("vae", 0, ranks=(1, 2), start_s=0.0), launch("dit", 0, ranks=(0, 2), start_s=2.0)
    )
    (route,) = routes_of(plan, None)
    assert (route.makers, route.source, route.receivers) == ((1, 2), 1, (0,))


def shape_of(module: Encoder, bucket: Bucket) -> tuple[int, ...]:
    return (bucket.frames, 3) if module == "vae" else (5,)


def result_of(step: int, module: Encoder, slot: int, bucket: Bucket) -> torch.Tensor:
    value = 1000.0 * step + 10.0 * slot + (module == "vae")
    return torch.full(shape_of(module, bucket), value)


@dataclass(kw_only=True)
class Ran:
    """A step on one rank."""

    is_right: bool
    held_bytes: int
    ledger: list[CollectiveRecord]
    log: RankLog


@dataclass(kw_only=True)
class Rank:
    """One rank that runs plans whose results are made up; it dawdles at random."""

    world: World
    recorder: Recorder
    groups: ProcessGroups
    handoffs: Handoffs
    dawdle: Random
    made: set[tuple[int, Encoder, int]] = field(default_factory=set)
    are_right: list[bool] = field(default_factory=list)

    def run(self, plan: PlacedPlan, next_plan: PlacedPlan | None) -> Ran:
        self.recorder.ledger.clear()
        routes = routes_of(plan, next_plan)
        self.made |= {(route.step, route.module, route.slot) for route in routes}
        self.handoffs.begin(routes)
        run_launches(
            plan,
            rank=self.world.rank,
            groups=self.groups,
            recorder=self.recorder,
            work=partial(self.train, plan.step),
            encode=partial(self.encode, plan.step),
        )
        self.handoffs.end(plan.step)
        return Ran(
            is_right=all(self.are_right),
            held_bytes=self.handoffs.held_bytes,
            ledger=list(self.recorder.ledger),
            log=self.recorder.finish(step=plan.step, planner=plan.planner),
        )

    def encode(self, step: int, index: int, launch: PlacedLaunch) -> None:
        cascade = launch.cascade
        assert cascade.module != "dit"
        time.sleep(self.dawdle.uniform(0.0, 0.003))
        step += cascade.steps_ahead
        for slot in cascade.slots:
            meet(self.groups.of(launch.ranks), 1)
            result = result_of(step, cascade.module, slot, cascade.bucket)
            self.handoffs.give(step, cascade.module, slot, result)

    def train(self, step: int, launch: PlacedLaunch) -> None:
        encoders: tuple[Encoder, ...] = ("vae", "text")
        for slot, module in itertools.product(launch.cascade.slots, encoders):
            if (step, module, slot) in self.made:
                expected = result_of(step, module, slot, launch.cascade.bucket)
                result = self.handoffs.take(step, module, slot)
                self.are_right.append(torch.equal(result, expected))
        time.sleep(self.dawdle.uniform(0.0, 0.003))
        meet(self.groups.of(launch.ranks), 2)


def run_pairs(world: World, pairs: list[Pair], seed: int) -> list[Ran]:
    """Both steps of each pair, of which the second leaves nothing behind; what the first did."""
    recorder, groups = open_groups(world)
    recorder.finish(step=0, planner="")
    recorder.keeps_ledger = True
    ran: list[Ran] = []
    for plan, next_plan in pairs:
        rank = Rank(
            world=world,
            recorder=recorder,
            groups=groups,
            handoffs=Handoffs(world, recorder, shape_of),
            dawdle=Random(seed * world.size + world.rank),
        )
        ran.append(rank.run(plan, next_plan))
        if next_plan is not None:
            second = rank.run(next_plan, None)
            assert second.is_right
            assert not second.held_bytes
    return ran


@pytest.mark.distributed
def test_random_plans_of_planner_and_mapper_run_and_every_result_arrives_where_it_is_needed():
    rng = Random(5)
    pairs: list[Pair] = [two_steps(rng, 3) for _ in range(30)]
    by_rank = run_ranks(3, run_pairs, (pairs, 1), timeout_s=20.0)
    for (plan, next_plan), *ran in zip(pairs, *by_rank, strict=True):
        assert all(each.is_right for each in ran)
        check_only_ends_meet(plan, next_plan, [each.ledger for each in ran])
        check_held(plan, next_plan, [each.held_bytes for each in ran])
        check_spans(plan, [each.log for each in ran])


def check_only_ends_meet(
    plan: PlacedPlan, next_plan: PlacedPlan | None, ledgers: list[list[CollectiveRecord]]
) -> None:
    """Law 3: a message has two ends, which the plan names; both know of it, and nobody else."""
    routes = routes_of(plan, next_plan)
    expected = Counter(
        (route.source, target, f"{route.module} of slot {route.slot} of step {route.step}")
        for route in routes
        if route.step == plan.step
        for target in route.receivers
    )
    sent, received = Counter(), Counter()
    for rank, ledger in enumerate(ledgers):
        for record in ledger:
            if record.operation != "handoff":
                continue
            (message,) = record.messages
            assert record.ranks == (message.source, message.target)
            assert record.launch is not None
            here = plan.launches[record.launch]
            assert rank in record.ranks
            assert rank in here.ranks
            if message.content.endswith(f"step {plan.step}"):
                key = (message.source, message.target, message.content)
                (sent if rank == message.source else received).update([key])
                assert (here.cascade.module == "dit") == (rank == message.target)
    assert sent == expected
    assert received == expected


def check_held(plan: PlacedPlan, next_plan: PlacedPlan | None, held: list[int]) -> None:
    """After a step a rank holds what it will train on in the next one, and nothing else."""
    for rank, num_bytes in enumerate(held):
        assert num_bytes == sum(
            result_of(0, route.module, route.slot, route.bucket).nbytes
            for route in routes_of(plan, next_plan)
            if route.step == plan.step + 1 and rank in route.targets
        )


def check_spans(plan: PlacedPlan, logs: list[RankLog]) -> None:
    """Handoffs are spans of the launches that need them, on their ranks alone."""
    trace = trace_from_logs(logs)
    for rank in range(plan.world_size):
        mine = [span for span in trace.spans if span.rank == rank]
        assert all(a.end_s <= b.start_s + 1e-9 for a, b in itertools.pairwise(mine))
        for span in mine:
            if span.kind == "handoff":
                assert span.launch is not None
                assert plan.launches[span.launch].cascade.module == "dit"
                assert rank in plan.launches[span.launch].ranks


def late_result(world: World) -> RankLog:
    """Rank 0 encodes for 0.2 s, which rank 1 waits for."""
    plan = plan_of(
        launch("vae", 0, ranks=(0,), start_s=0.0),
        launch("dit", 0, ranks=(1,), start_s=1.0),
        world_size=2,
    )
    recorder, groups = open_groups(world)
    handoffs = Handoffs(world, recorder, shape_of)
    handoffs.begin(routes_of(plan, None))
    recorder.finish(step=0, planner="")

    def encode(index: int, launch: PlacedLaunch) -> None:
        time.sleep(0.2)
        handoffs.give(plan.step, "vae", 0, result_of(4, "vae", 0, CLIP))

    def work(launch: PlacedLaunch) -> None:
        handoffs.take(plan.step, "vae", 0)

    run_launches(plan, rank=world.rank, groups=groups, recorder=recorder, work=work, encode=encode)
    return recorder.finish(step=plan.step, planner="")


@pytest.mark.distributed
def test_until_a_result_was_sent_its_receiver_waits_and_is_idle():
    trace = trace_from_logs(run_ranks(2, late_result, timeout_s=20.0))
    seconds: dict[str, float] = defaultdict(float)
    for span in trace.spans:
        if span.rank == 1:
            seconds[span.kind] += span.duration_s
    assert seconds["wait"] > 0.15
    assert 0.0 < seconds["handoff"] < 0.1
    assert {span.kind for span in trace.spans if span.rank == 0} == {"compute"}


def drop_what_was_made_ahead(world: World) -> tuple[int, int]:
    """Bytes held after a step that encoded ahead, and after the run was stopped there."""
    plan = plan_of(launch("vae", 0, ranks=(0,), start_s=0.0, steps_ahead=1), world_size=2)
    next_plan = plan_of(launch("dit", 0, ranks=(0, 1), start_s=0.0), step=5, world_size=2)
    recorder, groups = open_groups(world)
    handoffs = Handoffs(world, recorder, shape_of)
    handoffs.begin(routes_of(plan, next_plan))
    run_launches(
        plan,
        rank=world.rank,
        groups=groups,
        recorder=recorder,
        work=lambda launch: None,
        encode=lambda index, launch: handoffs.give(5, "vae", 0, result_of(5, "vae", 0, CLIP)),
    )
    handoffs.end(plan.step)
    before = handoffs.held_bytes
    handoffs.drop()
    return before, handoffs.held_bytes


@pytest.mark.distributed
def test_what_was_made_for_a_step_that_does_not_run_is_dropped_on_all_ranks():
    num_bytes = result_of(5, "vae", 0, CLIP).nbytes
    assert run_ranks(2, drop_what_was_made_ahead, timeout_s=20.0) == [(num_bytes, 0)] * 2


@pytest.mark.distributed
def test_checks_find_a_message_that_only_one_end_knows():
    plan = plan_of(
        launch("vae", 0, ranks=(0,), start_s=0.0), launch("dit", 0, ranks=(1,), start_s=1.0)
    )
    ran = run_ranks(3, run_pairs, ([(plan, None)], 0), timeout_s=20.0)
    pair = [of_rank[0].ledger for of_rank in ran]
    check_only_ends_meet(plan, None, pair)
    with pytest.raises(AssertionError):
        check_only_ends_meet(plan, None, [pair[0], [], pair[2]])
    stranger = [replace(record, ranks=(0, 2)) for record in pair[1]]
    with pytest.raises(AssertionError):
        check_only_ends_meet(plan, None, [pair[0], stranger, pair[2]])
