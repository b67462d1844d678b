from collections import defaultdict

import pytest
from hypothesis import given, settings

from arachne.core.batch import Batch
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from arachne.core.trace import Trace
from arachne.mapper.placement import place
from arachne.planner.registry import PLANNERS
from arachne.planner.stacking import cascade_of
from arachne.simulator.perturbation import Perturbation
from arachne.simulator.simulate import simulate
from tests.planner.problems import (
    BUCKETS,
    batch_of,
    batches,
    cluster_of,
    costs_of,
    problem_of,
    worlds,
)


def placed(batch: Batch, num_gpus: int, planner: str = "arachne") -> PlacedPlan:
    plan = PLANNERS[planner](problem_of(batch, num_gpus, iterations=30))
    return place(plan, cluster_of(num_gpus), step=0)


def last_launch_end_s(trace: Trace) -> float:
    return max(span.end_s for span in trace.spans if span.launch is not None)


@pytest.mark.parametrize("planner", PLANNERS)
@given(batch=batches, num_gpus=worlds)
@settings(max_examples=25, deadline=None)
def test_undisturbed_the_makespan_is_the_plans(planner: str, batch: Batch, num_gpus: int):
    plan = placed(batch, num_gpus, planner)

    assert last_launch_end_s(simulate(plan)) == plan.makespan_s
    assert last_launch_end_s(simulate(plan, costs_of(num_gpus))) == plan.makespan_s


@given(batch=batches, num_gpus=worlds)
@settings(max_examples=40, deadline=None)
def test_spans_of_a_rank_follow_each_other_without_gap_or_overlap(batch: Batch, num_gpus: int):
    disturbance = Perturbation(seed=1, jitter=0.3, slow_ranks=((0, 1.5),))

    trace = simulate(placed(batch, num_gpus), costs_of(num_gpus), disturbance)

    now_s: dict[int, float] = defaultdict(float)
    for span in trace.spans:
        assert span.start_s == now_s[span.rank]
        now_s[span.rank] = span.end_s
    assert set(now_s.values()) == {trace.iteration_s}
    assert not trace.is_measured


def test_a_step_ends_with_reduce_optimizer_and_gather_on_all_ranks():
    costs = costs_of(4)
    trace = simulate(placed(batch_of("96x64x1"), 4), costs)

    for rank in range(4):
        kinds = [span.kind for span in trace.spans if span.rank == rank]
        assert kinds[-3:] == ["reduce", "optimizer", "reduce"]
    assert trace.iteration_s == pytest.approx(last_launch_end_s(trace) + costs.step_overhead_s())


def test_a_slow_rank_makes_the_others_of_its_launch_wait():
    plan = placed(batch_of("224x96x81"), 2)
    assert plan.launches[0].degree == 2

    slow = simulate(plan, costs_of(2), Perturbation(slow_ranks=((1, 2.0),)))

    compute_s = {s.rank: s.duration_s for s in slow.spans if s.kind == "compute"}
    waits_s = {s.rank: s.duration_s for s in slow.spans if s.kind == "wait"}
    launch = plan.launches[0]
    assert compute_s[0] == pytest.approx(costs_of(2).compute_s(launch.cascade, launch.ranks))
    assert compute_s[1] == pytest.approx(2.0 * compute_s[0])
    assert waits_s == {0: pytest.approx(compute_s[0])}


def test_noise_depends_on_the_seed_alone():
    plan = placed(batch_of(*BUCKETS), 4)
    noisy = simulate(plan, costs_of(4), Perturbation(seed=1, jitter=0.1))

    assert noisy == simulate(plan, costs_of(4), Perturbation(seed=1, jitter=0.1))
    assert noisy != simulate(plan, costs_of(4), Perturbation(seed=2, jitter=0.1))
    assert noisy != simulate(plan, costs_of(4))


def test_computing_and_communicating_are_told_apart():
    costs = costs_of(2)
    plan = placed(batch_of("224x96x81"), 2)
    launch = plan.launches[0]

    trace = simulate(plan, costs)

    communicate_s = sum(
        s.duration_s for s in trace.spans if s.kind == "communicate" and s.rank == 0
    )
    assert communicate_s == pytest.approx(costs.communicate_s(launch.cascade, launch.ranks))


def test_a_launch_waits_for_the_last_of_its_ranks():
    batch = batch_of("160x96x17", "96x64x1")
    early, late = (cascade_of(batch.clips, (slot,)) for slot in (0, 1))
    plan = PlacedPlan(
        step=0,
        planner="test",
        world_size=2,
        launches=(
            PlacedLaunch(cascade=early, ranks=(1,), start_s=0.0, duration_s=2.0),
            PlacedLaunch(cascade=late, ranks=(0, 1), start_s=2.0, duration_s=1.0),
        ),
    )

    trace = simulate(plan)

    assert trace.launch_interval_s(1) == (0.0, 3.0)
    assert [(s.rank, s.kind, s.start_s, s.end_s) for s in trace.spans if s.launch == 1] == [
        (0, "wait", 0.0, 2.0),
        (0, "compute", 2.0, 3.0),
        (1, "compute", 2.0, 3.0),
    ]


def test_a_phase_starts_when_the_phase_before_has_ended_on_every_rank():
    batch = batch_of("96x64x1", "96x64x33", "96x64x1", "96x64x1")
    images = [cascade_of(batch.clips, (slot,)) for slot in (0, 2, 3)]
    video = cascade_of(batch.clips, (1,))
    plan = PlacedPlan(
        step=0,
        planner="test",
        world_size=3,
        launches=(
            PlacedLaunch(cascade=images[0], ranks=(0,), start_s=0.0, duration_s=1.0),
            PlacedLaunch(cascade=video, ranks=(1,), start_s=0.0, duration_s=5.0),
            PlacedLaunch(cascade=images[1], ranks=(0,), start_s=5.0, duration_s=1.0, phase=1),
            PlacedLaunch(cascade=images[2], ranks=(2,), start_s=6.0, duration_s=1.0, phase=2),
        ),
    )

    slower = Perturbation(slow_ranks=((1, 2.0),))
    for disturbance, barrier_s in ((Perturbation(), 5.0), (slower, 10.0)):
        spans = simulate(plan, perturbation=disturbance).spans
        computed = {s.launch: (s.start_s, s.end_s) for s in spans if s.kind == "compute"}
        waited = {s.launch: (s.start_s, s.end_s) for s in spans if s.kind == "wait"}
        assert computed[2] == (barrier_s, barrier_s + 1.0)
        assert computed[3] == (barrier_s + 1.0, barrier_s + 2.0)
        assert waited == {2: (1.0, barrier_s), 3: (0.0, barrier_s + 1.0)}
