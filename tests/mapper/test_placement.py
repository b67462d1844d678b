from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arachne.core.batch import Batch
from arachne.core.errors import InfeasibleError
from arachne.core.launch_inputs import input_launches
from arachne.core.launch_mode import LaunchMode
from arachne.core.placed_plan import PlacedPlan
from arachne.core.plan import Launch, Plan
from arachne.core.plan_rules import check_placed_plan
from arachne.mapper.communication_score import communication_score_s
from arachne.mapper.encoders_apart import encoders_apart
from arachne.mapper.placement import place
from arachne.planner.tree import plan_arachne
from arachne.simulator.simulate import simulate
from tests.mapper.encoder_plans import (
    NodeCosts,
    cascade_of,
    nodes,
    random_batch,
    random_plan,
    scheduled,
    uncached_batch,
)
from tests.planner.problems import batch_of, batches, cluster_of, costs_of, problem_of

VIDEOS = batch_of(*["224x96x81"] * 4)


def plan_on(num_gpus: int, *groups: tuple[int, ...]) -> Plan:
    return Plan(
        planner="test",
        num_gpus=num_gpus,
        launches=tuple(
            Launch(
                cascade=cascade_of(VIDEOS, "dit", slot),
                gpus=gpus,
                start_s=0.0,
                duration_s=1.0,
            )
            for slot, gpus in enumerate(groups)
        ),
    )


def test_aligned_blocks_stay_where_they_are():
    placed = place(plan_on(8, (0, 1, 2, 3), (4, 5)), cluster_of(8, gpus_per_node=4), step=0)

    assert [launch.ranks for launch in placed.launches] == [(0, 1, 2, 3), (4, 5)]


def test_a_block_that_would_cross_nodes_moves_into_one():
    cluster = cluster_of(12, gpus_per_node=6)

    placed = place(plan_on(12, (0, 1, 2, 3), (4, 5, 6, 7)), cluster, step=0)

    assert [launch.ranks for launch in placed.launches] == [(0, 1, 2, 3), (6, 7, 8, 9)]


def test_a_launch_does_not_move_into_one_node_where_that_splits_another():
    crossing = plan_on(8, (0, 1, 2), (3, 4, 5), (6, 7))
    longer = replace(crossing.launches[1], duration_s=9.0)
    plan = replace(crossing, launches=(crossing.launches[0], longer, crossing.launches[2]))

    placed = place(plan, cluster_of(8, gpus_per_node=4), step=0)

    assert [launch.ranks for launch in placed.launches] == [(0, 1, 2), (3, 4, 5), (6, 7)]
    without = replace(plan, launches=plan.launches[:2])
    moved = place(without, cluster_of(8, gpus_per_node=4), step=0)
    assert [launch.ranks for launch in moved.launches] == [(0, 1, 2), (4, 5, 6)]


@given(batch=batches)
@settings(max_examples=40, deadline=None)
def test_placement_keeps_a_plan_valid_with_its_times(batch: Batch):
    plan = plan_arachne(problem_of(batch, 12, iterations=20))

    placed = place(plan, cluster_of(12, gpus_per_node=6), step=0)

    check_placed_plan(placed, batch, 12)
    assert placed.makespan_s == plan.makespan_s
    assert sorted(launch.cascade.slots for launch in placed.launches) == sorted(
        launch.cascade.slots for launch in plan.launches
    )


def test_the_score_prefers_blocks_inside_nodes():
    cluster = cluster_of(12, gpus_per_node=6)
    costs = replace(costs_of(12), cluster=cluster)
    crossing = plan_on(12, (0, 1, 2, 3), (4, 5, 6, 7))
    unmoved = place(crossing, cluster_of(12), step=0)

    score_s = communication_score_s(place(crossing, cluster, step=0), costs)

    assert 0.0 < score_s < communication_score_s(unmoved, costs)


def test_a_plan_for_another_cluster_is_refused():
    with pytest.raises(InfeasibleError, match="is for 8 GPUs but cluster 'test' has 4"):
        place(plan_on(8, (0,), (1,)), cluster_of(4), step=0)


def test_a_moved_launch_takes_as_long_as_it_does_on_its_ranks():
    cluster = nodes(2, 6)
    costs = NodeCosts(cluster=cluster)
    batch = uncached_batch("832x480x81", "832x480x81")
    plan = scheduled(
        costs,
        [
            (cascade_of(batch, "dit", 0), (0, 1, 2, 3)),
            (cascade_of(batch, "dit", 1), (4, 5, 6, 7)),
        ],
    )

    moved = place(plan, cluster, step=0, costs=costs)

    assert [launch.ranks for launch in moved.launches] == [(0, 1, 2, 3), (6, 7, 8, 9)]
    inside_s = costs.launch_s(moved.launches[0].cascade, (0, 1, 2, 3))
    assert [launch.duration_s for launch in moved.launches] == [inside_s, inside_s]
    assert moved.makespan_s < plan.makespan_s


def test_large_blocks_get_their_node_before_small_ones_fill_it():
    plan = plan_on(8, (0, 1), (2, 3, 4), (5,), (6, 7))

    placed = place(plan, cluster_of(8, gpus_per_node=4), step=0)

    assert sorted(launch.ranks for launch in placed.launches) == [(0, 1, 2), (3,), (4, 5), (6, 7)]


def test_nothing_moves_where_moving_does_not_help():
    overlapping = plan_on(8, (2, 3), (3, 4))

    placed = place(overlapping, cluster_of(8, gpus_per_node=4), step=0)

    assert [launch.ranks for launch in placed.launches] == [(2, 3), (3, 4)]


def test_a_slot_keeps_its_speed():
    speeds = (1.0, 1.0, 0.5, 0.5, 1.0, 1.0, 0.5, 0.5)
    cluster = replace(nodes(2, 4), speeds=speeds)
    crossing = plan_on(8, (0, 1, 2), (3, 4, 5))

    ranks = [launch.ranks for launch in place(crossing, cluster, step=0).launches]

    assert ranks == [(0, 1, 2), (4, 5, 6)]
    no_node_has_both = replace(cluster, speeds=(1.0,) * 4 + (0.5,) * 4)
    unmoved = place(crossing, no_node_has_both, step=0)
    assert [launch.ranks for launch in unmoved.launches] == [(0, 1, 2), (3, 4, 5)]


def test_a_launch_does_not_move_to_fewer_nodes_where_its_ranks_share_fewer_nics():
    pairs = plan_on(12, (0, 1, 4, 5, 8, 9))

    own = place(pairs, nodes(3, 4), step=0)
    shared = place(pairs, nodes(3, 4, nics=1), step=0)

    assert own.launches[0].ranks == (0, 1, 2, 3, 4, 5)
    assert shared.launches[0].ranks == (0, 1, 4, 5, 8, 9)


def test_ulysses_groups_that_lie_in_nodes_stay_whole():
    crossing = plan_on(12, (0, 1, 2, 4, 5, 6), (3, 7))
    threes = replace(crossing.launches[0], mode=LaunchMode(ring=2))
    ring = replace(crossing, launches=(threes, crossing.launches[1]))

    def placed_ranks(plan: Plan) -> list[tuple[int, ...]]:
        return [launch.ranks for launch in place(plan, nodes(3, 4), step=0).launches]

    assert placed_ranks(crossing) == [(0, 1, 2, 3, 4, 5), (6, 7)]
    assert placed_ranks(ring) == [(0, 1, 2, 4, 5, 6), (3, 7)]


seeds = st.integers(0, 10**6)


def problem(seed: int):
    rng = Random(seed)
    cluster = nodes(*rng.choice(((1, 4), (2, 4), (4, 4), (2, 6), (3, 6), (2, 9), (4, 3))))
    cluster = replace(cluster, nics_per_node=rng.choice((0, 1, 2)))
    costs = NodeCosts(cluster=cluster)
    batch = random_batch(rng)
    return batch, costs, random_plan(rng, batch, costs)


@given(seed=seeds)
@settings(max_examples=150, deadline=None)
def test_a_placed_plan_is_valid_and_never_longer_than_planned(seed: int):
    batch, costs, plan = problem(seed)
    unmoved = place(plan, costs.cluster, step=0)

    placed = place(plan, costs.cluster, step=0, costs=costs)

    check_placed_plan(placed, batch, plan.num_gpus)
    assert placed.makespan_s <= plan.makespan_s
    if placed != place(plan, cluster_of(plan.num_gpus), step=0):  # as numbered, where moves cost
        score_s = communication_score_s(unmoved, costs)
        assert communication_score_s(placed, costs) <= score_s + 1e-9
    assert simulate(placed, costs).makespan_s >= placed.makespan_s * (1 - 1e-12)
    check_times(placed, costs)


def check_times(placed: PlacedPlan, costs: NodeCosts) -> None:
    """Every launch takes as long as on its ranks, and starts when its inputs have come to them."""
    inputs = input_launches([launch.cascade for launch in placed.launches])
    for launch, needed in zip(placed.launches, inputs, strict=True):
        assert launch.duration_s == costs.launch_s(launch.cascade, launch.ranks)
        for encoder in (placed.launches[index] for index in needed):
            handoff_s = costs.handoff_s(encoder.cascade, encoder.ranks, launch.ranks)
            assert launch.start_s >= encoder.end_s + handoff_s


def test_a_launch_that_moved_does_not_start_before_its_inputs_come_from_another_node():
    costs = NodeCosts(cluster=nodes(2, 9))
    batch = uncached_batch("832x480x1", "832x480x81")
    plan = scheduled(
        costs,
        [
            (cascade_of(batch, "text", 1), (0,)),
            (cascade_of(batch, "text", 0), (5,)),
            (cascade_of(batch, "vae", 1), (15,)),
            (cascade_of(batch, "dit", 0), (6, 7, 8, 9, 10, 11)),
            (cascade_of(batch, "dit", 1), (12,)),
        ],
    )

    placed = place(plan, costs.cluster, 0, costs=costs)

    check_times(placed, costs)
    assert placed.makespan_s <= plan.makespan_s


@given(seed=seeds, intra=st.booleans(), inter=st.booleans())
@settings(max_examples=60, deadline=None)
def test_whatever_is_switched_off_the_plan_is_valid_and_true_to_its_ranks(
    seed: int, intra: bool, inter: bool
):
    batch, costs, plan = problem(seed)

    def placed():
        return place(plan, costs.cluster, 0, intra_cascade=intra, inter_cascade=inter, costs=costs)

    check_placed_plan(placed(), batch, plan.num_gpus)
    assert placed() == placed()
    if not (intra and inter):
        for launch in placed().launches:
            assert launch.duration_s == costs.launch_s(launch.cascade, launch.ranks)


def aligned_plan() -> tuple[NodeCosts, Plan]:
    """Two clips, each encoded and trained inside one node; four images beside them."""
    costs = NodeCosts(cluster=nodes(2, 4))
    batch = uncached_batch("832x480x81", "832x480x81")
    encoders = [(cascade_of(batch, "vae", slot), (4 * slot,)) for slot in (0, 1)]
    trained = [
        (cascade_of(batch, "dit", slot), tuple(range(4 * slot, 4 * slot + 4))) for slot in (0, 1)
    ]
    return costs, scheduled(costs, encoders + trained)


def test_a_plan_that_lies_well_stays_as_it_is():
    costs, plan = aligned_plan()

    placed = place(plan, costs.cluster, 0, costs=costs)

    assert placed == place(plan, costs.cluster, 0)
    assert [(launch.ranks, launch.start_s, launch.duration_s) for launch in placed.launches] == [
        (launch.gpus, launch.start_s, launch.duration_s) for launch in plan.launches
    ]


def crossed_plan(*, is_handoff_planned: bool) -> tuple[NodeCosts, Plan]:
    """The same with each encoder in the other clip's node."""
    costs, aligned = aligned_plan()
    cascades = {(one.cascade.module, one.cascade.slots[0]): one for one in aligned.launches}
    swapped = [
        (cascades["vae", 0].cascade, (4,)),
        (cascades["vae", 1].cascade, (0,)),
        (cascades["dit", 0].cascade, (0, 1, 2, 3)),
        (cascades["dit", 1].cascade, (4, 5, 6, 7)),
    ]
    plan = scheduled(costs, swapped)
    if is_handoff_planned:
        return costs, plan
    trained = [
        replace(one, start_s=plan.launches[0].end_s)
        for one in plan.launches
        if one.cascade.module == "dit"
    ]
    return costs, replace(plan, launches=(*plan.launches[:2], *trained))


def test_encoders_come_to_the_nodes_that_need_them_and_training_starts_earlier():
    costs, plan = crossed_plan(is_handoff_planned=True)

    placed = place(plan, costs.cluster, 0, costs=costs)

    encoded_in_node = {
        one.cascade.slots: one.ranks[0] // 4
        for one in placed.launches
        if one.cascade.module == "vae"
    }
    assert encoded_in_node == {(0,): 0, (1,): 1}
    assert placed.makespan_s == aligned_plan()[1].makespan_s < plan.makespan_s


@pytest.mark.parametrize("is_idle", [True, False])
def test_an_encoder_comes_to_an_idle_rank_or_trades_with_the_one_that_is_there(is_idle: bool):
    costs = NodeCosts(cluster=nodes(2, 1))
    batch = uncached_batch("832x480x17", "832x480x17")
    clips = [0] if is_idle else [0, 1]
    encoders = [(cascade_of(batch, "vae", slot), (1 - slot,)) for slot in clips]
    trained = [(cascade_of(batch, "dit", slot), (slot,)) for slot in clips]

    placed = place(scheduled(costs, encoders + trained), costs.cluster, 0, costs=costs)

    assert {one.ranks == one.cascade.slots for one in placed.launches} == {True}


def test_a_plan_that_forgot_handoffs_does_not_become_longer():
    costs, plan = crossed_plan(is_handoff_planned=False)
    assert place(plan, costs.cluster, 0, costs=costs).makespan_s == plan.makespan_s


def test_the_score_counts_the_receivers_of_handoffs():
    costs, plan = aligned_plan()
    placed = place(plan, costs.cluster, 0)
    by_module = {one.cascade.module: one for one in placed.launches}
    encoder, trained = by_module["vae"], by_module["dit"]

    exchanged_s = costs.communicate_s(trained.cascade, trained.ranks)
    handoff_s = costs.handoff_s(encoder.cascade, encoder.ranks, trained.ranks)
    assert handoff_s > 0.0
    expected_s = 2 * 4 * (exchanged_s + handoff_s)
    assert communication_score_s(placed, costs) == pytest.approx(expected_s)


def test_pauses_stay_in_a_plan_that_lies_well():
    costs, plan = aligned_plan()
    later = [replace(launch, start_s=launch.start_s + 1.0) for launch in plan.launches]

    placed = place(replace(plan, launches=tuple(later)), costs.cluster, 0, costs=costs)

    assert [launch.start_s for launch in placed.launches] == [launch.start_s for launch in later]


def test_without_knowing_nodes_neighbouring_slots_are_scattered_over_them():
    costs, plan = aligned_plan()

    scattered = place(plan, costs.cluster, 0, intra_cascade=False, costs=costs)

    trained = [launch for launch in scattered.launches if launch.cascade.module == "dit"]
    assert [launch.ranks for launch in trained] == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert scattered.makespan_s > plan.makespan_s
    assert communication_score_s(scattered, costs) > communication_score_s(
        place(plan, costs.cluster, 0), costs
    )


def test_without_knowing_inputs_encoders_run_in_the_next_node():
    costs, plan = aligned_plan()

    apart = place(plan, costs.cluster, 0, inter_cascade=False, costs=costs)

    encoders = {one.cascade.slots: one.ranks for one in apart.launches if one.degree == 1}
    assert encoders == {(0,): (4,), (1,): (0,)}
    assert apart.makespan_s == crossed_plan(is_handoff_planned=True)[1].makespan_s


def test_encoders_of_one_node_go_half_a_node_further_and_those_of_the_next_step_stay():
    encoding = [cascade_of(uncached_batch("832x480x17"), module, 0) for module in ("vae", "text")]
    cascades = (encoding[0], replace(encoding[1], steps_ahead=1))
    plan = scheduled(NodeCosts(cluster=nodes(1)), [(cascade, (1,)) for cascade in cascades])

    apart = encoders_apart(plan, nodes(1))

    assert [launch.gpus for launch in apart.launches] == [(3,), (1,)]


def test_scattered_encoders_are_apart_too():
    costs, plan = aligned_plan()

    placed = place(plan, costs.cluster, 0, intra_cascade=False, inter_cascade=False, costs=costs)

    ranks = {(one.cascade.module, one.cascade.slots): one.ranks for one in placed.launches}
    assert ranks["vae", (0,)] == (2,)
    assert ranks["dit", (0,)] == (0, 1, 4, 5)


def test_a_switch_needs_costs():
    costs, plan = aligned_plan()
    with pytest.raises(AssertionError, match="needs a price"):
        place(plan, costs.cluster, 0, intra_cascade=False)
