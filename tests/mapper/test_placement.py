from dataclasses import replace

import pytest
from hypothesis import given, settings

from arachne.core.batch import Batch
from arachne.core.errors import InfeasibleError
from arachne.core.plan import Launch, Plan
from arachne.core.plan_rules import check_placed_plan
from arachne.mapper.placement import communication_score_s, place
from arachne.planner.stacking import cascade_of
from arachne.planner.tree import plan_arachne
from tests.planner.problems import batch_of, batches, cluster_of, costs_of, problem_of

TWO_VIDEOS = batch_of("224x96x81", "224x96x81")


def plan_on(num_gpus: int, *groups: tuple[int, ...]) -> Plan:
    return Plan(
        planner="test",
        num_gpus=num_gpus,
        launches=tuple(
            Launch(
                cascade=cascade_of(TWO_VIDEOS.clips, (slot,)),
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


def test_no_launch_comes_to_span_more_nodes_than_it_was_priced_for():
    # Only one of the two can have a node for itself; moving blocks about would not help both.
    cluster = cluster_of(6, gpus_per_node=3)

    placed = place(plan_on(6, (0, 1), (2, 3, 4)), cluster, step=0)

    assert [len({cluster.node_of(r) for r in launch.ranks}) for launch in placed.launches] == [1, 1]


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

    score_s = communication_score_s(place(crossing, cluster, step=0), costs.communicate_s)

    assert 0.0 < score_s < communication_score_s(unmoved, costs.communicate_s)


def test_a_plan_for_another_cluster_is_refused():
    with pytest.raises(InfeasibleError, match="is for 8 GPUs but cluster 'test' has 4"):
        place(plan_on(8, (0,), (1,)), cluster_of(4), step=0)
