from collections import defaultdict
from dataclasses import replace
from random import Random
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arachne.core.batch import Batch
from arachne.core.launch_inputs import input_launches
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from arachne.core.trace import Trace
from arachne.mapper.placement import place
from arachne.planner.registry import PLANNERS
from arachne.planner.stacking import cascade_of
from arachne.simulator.perturbation import Perturbation
from arachne.simulator.simulate import simulate
from tests.mapper.encoder_plans import (
    NodeCosts,
    nodes,
    random_batch,
    random_plan,
    uncached_batch,
)
from tests.mapper.encoder_plans import cascade_of as cascade_of_module
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


seeds = st.integers(0, 10**6)


def with_encoders(seed: int, *, nics: int = 0) -> tuple[PlacedPlan, NodeCosts]:
    """A plan on several nodes that was priced without any other launch on its NICs."""
    rng = Random(seed)
    costs = NodeCosts(cluster=nodes(rng.choice((1, 2, 4)), nics=nics))
    return place(random_plan(rng, random_batch(rng), costs), costs.cluster, step=3), costs


@given(seed=seeds)
@settings(max_examples=60, deadline=None)
def test_undisturbed_every_launch_starts_and_ends_when_the_plan_says(seed: int):
    plan, costs = with_encoders(seed)

    trace = simulate(plan, costs)

    ends_s = {span.launch: span.end_s for span in trace.spans if span.launch is not None}
    starts_s = {span.launch: span.start_s for span in trace.spans if span.kind == "compute"}
    for index, launch in enumerate(plan.launches):
        assert (starts_s[index], ends_s[index]) == (launch.start_s, launch.end_s)
    assert simulate(plan).makespan_s == pytest.approx(plan.makespan_s, rel=1e-12)


@given(seed=seeds, nics=st.sampled_from((1, 2, 3)))
@settings(max_examples=60, deadline=None)
def test_shared_nics_only_ever_delay(seed: int, nics: int):
    plan, costs = with_encoders(seed, nics=nics)

    trace = simulate(plan, costs)

    for index, launch in enumerate(plan.launches):
        spans = [span for span in trace.spans if span.launch == index]
        assert max(span.end_s for span in spans) >= launch.end_s * (1 - 1e-12)
        compute_s = {span.duration_s for span in spans if span.kind == "compute"}
        communicate_s = costs.communicate_s(launch.cascade, launch.ranks)
        assert max(compute_s) == pytest.approx(launch.duration_s - communicate_s)
        moved = [span.duration_s for span in spans if span.kind == "communicate"]
        assert all(seconds >= communicate_s * (1 - 1e-9) for seconds in moved)
    assert trace == simulate(plan, costs)


def two_across(nics: int) -> tuple[PlacedPlan, NodeCosts]:
    """Two alike launches, each with two ranks in either node."""
    costs = NodeCosts(cluster=nodes(2, nics=nics))
    batch = uncached_batch("832x480x17", "832x480x17")
    cascades = [cascade_of_module(batch, "dit", slot) for slot in (0, 1)]
    launches = tuple(
        PlacedLaunch(
            cascade=cascade,
            ranks=ranks,
            start_s=0.0,
            duration_s=costs.launch_s(cascade, ranks),
        )
        for cascade, ranks in zip(cascades, ((0, 1, 4, 5), (2, 3, 6, 7)), strict=True)
    )
    return PlacedPlan(step=0, planner="test", world_size=8, launches=launches), costs


@pytest.mark.parametrize(("nics", "slowness"), [(0, 1.0), (4, 1.0), (3, 4 / 3), (2, 2.0), (1, 2.0)])
def test_launches_that_cross_nodes_at_once_share_the_nics(nics: int, slowness: float):
    plan, costs = two_across(nics)
    launch = plan.launches[0]

    trace = simulate(plan, costs)

    moved = [span.duration_s for span in trace.spans if span.kind == "communicate"]
    alone_s = costs.communicate_s(launch.cascade, launch.ranks)
    assert moved == [pytest.approx(alone_s * slowness)] * 8


def test_launches_inside_nodes_or_at_other_times_do_not_slow_each_other():
    plan, costs = two_across(nics=2)
    first, second = plan.launches
    inside = replace(plan, launches=(first, replace(second, ranks=(2, 3))))
    slow = Perturbation(slow_ranks=((2, 100.0),))

    for quiet, disturbance in ((inside, Perturbation()), (plan, slow)):
        assert simulate(quiet, costs, disturbance).launch_interval_s(0) == (0.0, first.end_s)


def encoded_far_away() -> tuple[PlacedPlan, NodeCosts]:
    """Rank 0 encodes what ranks 2 and 3 train on; rank 2 has something to do before."""
    costs = NodeCosts(cluster=nodes(2, 2))
    batch = uncached_batch("832x480x17", "832x480x1")
    encoding, training = (cascade_of_module(batch, module, 0) for module in ("vae", "dit"))
    before = cascade_of_module(batch, "dit", 1)
    encoded_s = costs.launch_s(encoding, (0,))
    arrived_s = encoded_s + costs.handoff_s(encoding, (0,), (2, 3))
    launches = (
        PlacedLaunch(cascade=encoding, ranks=(0,), start_s=0.0, duration_s=encoded_s),
        PlacedLaunch(
            cascade=before,
            ranks=(2,),
            start_s=0.0,
            duration_s=costs.launch_s(before, (2,)),
        ),
        PlacedLaunch(
            cascade=training,
            ranks=(2, 3),
            start_s=arrived_s,
            duration_s=costs.launch_s(training, (2, 3)),
        ),
    )
    return PlacedPlan(step=0, planner="test", world_size=4, launches=launches), costs


def test_a_handoff_is_seen_where_a_receiver_has_nothing_else_to_do():
    plan, costs = encoded_far_away()
    encoded_s, busy_s = plan.launches[0].end_s, plan.launches[1].end_s
    arrived_s = plan.launches[2].start_s
    assert encoded_s < busy_s < arrived_s

    trace = simulate(plan, costs)

    before = [(s.rank, s.kind, s.start_s, s.end_s) for s in trace.spans if s.launch == 2]
    assert before[0] == (2, "handoff", busy_s, arrived_s)
    rank_3 = [span for span in before if span[0] == 3]
    assert rank_3[:2] == [
        (3, "wait", 0.0, encoded_s),
        (3, "handoff", encoded_s, arrived_s),
    ]
    assert trace.busy_s(3) > arrived_s - encoded_s


def test_a_slower_network_delays_handoffs_collectives_and_the_steps_end():
    plan, costs = encoded_far_away()
    handoff_s = plan.launches[2].start_s - plan.launches[0].end_s
    communicate_s = costs.communicate_s(plan.launches[2].cascade, (2, 3))
    optimizer_s, ends_s = 0.1, 0.5

    trace = simulate(plan, costs, Perturbation(bandwidth=0.5))

    assert trace.makespan_s == pytest.approx(plan.makespan_s + handoff_s + communicate_s)
    assert trace.iteration_s == pytest.approx(trace.makespan_s + optimizer_s + 2 * ends_s)


def depend_on_rank(plan: PlacedPlan, rank: int) -> set[int]:
    """Launches on a rank, and all that wait for one of those."""
    inputs = input_launches([launch.cascade for launch in plan.launches])
    late: set[int] = set()
    late_ranks = {rank}
    for index, launch in enumerate(plan.launches):
        if late_ranks & set(launch.ranks) or late & set(inputs[index]):
            late.add(index)
            late_ranks |= set(launch.ranks)
    return late


@given(seed=seeds, rank=st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_a_slow_rank_delays_only_what_depends_on_it(seed: int, rank: int):
    plan, costs = with_encoders(seed)
    late = depend_on_rank(plan, rank)

    trace = simulate(plan, costs, Perturbation(slow_ranks=((rank, 3.0),)))

    ends_s = {span.launch: span.end_s for span in trace.spans if span.launch is not None}
    for index, launch in enumerate(plan.launches):
        if index not in late:
            assert ends_s[index] == launch.end_s
        elif rank in launch.ranks:
            assert ends_s[index] > launch.end_s
        else:
            assert ends_s[index] >= launch.end_s


@given(seed=seeds, nics=st.sampled_from((0, 1)))
@settings(max_examples=60, deadline=None)
def test_disturbed_traces_have_no_gap_no_overlap_and_an_idle_ratio(seed: int, nics: int):
    plan, costs = with_encoders(seed, nics=nics)
    disturbance = Perturbation(
        seed=seed,
        jitter=0.2,
        shape_error=0.1,
        degree_error=0.1,
        slow_ranks=((1, 1.5),),
        straggler_share=0.3,
        straggler_window_s=0.2,
        bandwidth=0.7,
    )

    trace = simulate(plan, costs, disturbance)

    now_s: dict[int, float] = defaultdict(float)
    for span in trace.spans:
        assert span.start_s == now_s[span.rank]
        now_s[span.rank] = span.end_s
    assert set(now_s.values()) == {trace.iteration_s}
    assert 0.0 <= trace.idle_ratio < 1.0
    assert trace == simulate(plan, costs, disturbance)
    computed = {(s.rank, s.launch) for s in trace.spans if s.kind == "compute"}
    assert computed == {(r, i) for i, one in enumerate(plan.launches) for r in one.ranks}


def test_a_slower_gpu_of_an_uneven_cluster_makes_the_others_of_its_launch_wait():
    cluster = replace(nodes(1), speeds=(1.0, 1.0, 0.5, 0.5))
    costs = NodeCosts(cluster=cluster)
    cascade = cascade_of_module(uncached_batch("832x480x17"), "dit", 0)
    duration_s = costs.launch_s(cascade, (1, 2))
    launch = PlacedLaunch(cascade=cascade, ranks=(1, 2), start_s=0.0, duration_s=duration_s)
    plan = PlacedPlan(step=0, planner="test", world_size=4, launches=(launch,))

    trace = simulate(plan, costs)

    assert trace.makespan_s == duration_s
    compute_s = {span.rank: span.duration_s for span in trace.spans if span.kind == "compute"}
    assert compute_s[2] == pytest.approx(2.0 * compute_s[1])
    assert compute_s[2] == pytest.approx(duration_s - costs.communicate_s(cascade, (1, 2)))


def test_encoders_of_the_next_step_fill_the_end_of_this_one():
    costs = NodeCosts(cluster=nodes(1, 2))
    batch = uncached_batch("832x480x17")
    training, encoding = (cascade_of_module(batch, module, 0) for module in ("dit", "vae"))
    ahead = replace(encoding, steps_ahead=1)
    plan = PlacedPlan(
        step=0,
        planner="test",
        world_size=2,
        launches=(
            PlacedLaunch(cascade=ahead, ranks=(1,), start_s=0.0, duration_s=1.0),
            PlacedLaunch(cascade=training, ranks=(0,), start_s=0.0, duration_s=1.0),
        ),
    )

    trace = simulate(plan, costs)

    assert trace.launch_interval_s(1) == (0.0, costs.launch_s(training, (0,)))
    assert not [span for span in trace.spans if span.kind == "handoff"]


def test_an_idle_gap_that_a_plan_leaves_before_training_is_its_handoff():
    plan, _ = encoded_far_away()

    trace = simulate(plan, perturbation=Perturbation(slow_ranks=((0, 2.0),)))

    encoded_s, arrived_s = plan.launches[0].end_s, plan.launches[2].start_s
    assert trace.launch_interval_s(0) == (0.0, 2.0 * encoded_s)
    computed = [s for s in trace.spans if s.launch == 2 and s.kind == "compute"]
    assert computed[0].start_s == pytest.approx(arrived_s + encoded_s)


def test_results_that_are_at_hand_do_not_cut_a_wait_into_pieces():
    batch = uncached_batch("832x480x17")
    vae, text, training = (cascade_of_module(batch, m, 0) for m in ("vae", "text", "dit"))
    plan = PlacedPlan(
        step=0,
        planner="test",
        world_size=3,
        launches=(
            PlacedLaunch(cascade=text, ranks=(1,), start_s=0.0, duration_s=0.5),
            PlacedLaunch(cascade=vae, ranks=(2,), start_s=0.0, duration_s=1.0),
            PlacedLaunch(cascade=training, ranks=(0,), start_s=1.0, duration_s=2.0),
        ),
    )

    spans = [(s.kind, s.start_s, s.end_s) for s in simulate(plan).spans if s.rank == 0]

    assert spans == [("wait", 0.0, 1.0), ("compute", 1.0, 3.0)]


@pytest.mark.parametrize("is_barrier", [False, True])
def test_waiting_for_a_rank_or_a_barrier_is_no_handoff(is_barrier: bool):
    batch = uncached_batch("832x480x17", "832x480x17")
    encoding, training = (cascade_of_module(batch, module, 0) for module in ("vae", "dit"))
    other = cascade_of_module(batch, "dit", 1)
    busy_rank, phase = (0, 1) if is_barrier else (2, 0)
    plan = PlacedPlan(
        step=0,
        planner="test",
        world_size=3,
        launches=(
            PlacedLaunch(cascade=other, ranks=(busy_rank,), start_s=0.0, duration_s=3.0),
            PlacedLaunch(cascade=encoding, ranks=(1,), start_s=0.0, duration_s=1.0),
            PlacedLaunch(cascade=training, ranks=(2,), start_s=3.0, duration_s=1.0, phase=phase),
        ),
    )

    slow = simulate(plan, perturbation=Perturbation(slow_ranks=((1, 2.0),)))

    assert slow.makespan_s == plan.makespan_s
    assert not [span for span in slow.spans if span.kind == "handoff"]


def test_a_thousand_gpus_and_four_thousand_clips_are_simulated_in_seconds():
    batch = batch_of(*[BUCKETS[slot % len(BUCKETS)] for slot in range(4096)])
    plan = PLANNERS["static_dp"](problem_of(batch, 1024, stack_tokens=0, max_degree=1))
    noise = Perturbation(seed=1, jitter=0.1, straggler_share=0.1, straggler_factor=2.0)
    started_s = process_time()

    trace = simulate(place(plan, cluster_of(1024, 8), 0), costs_of(1024), noise)

    assert process_time() - started_s < 5.0  # about 0.6 s
    assert len({span.launch for span in trace.spans if span.launch is not None}) == 4096
