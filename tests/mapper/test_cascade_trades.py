from dataclasses import replace

import pytest

from arachne.mapper.cascade_trades import near_inputs
from tests.mapper.encoder_plans import NodeCosts
from tests.mapper.hand_made import CLUSTER, COSTS, launch, plan_of, ranks_of

CROSSED = (
    launch("vae", 0, 2, start_s=0.0),
    launch("vae", 1, 0, start_s=0.0),
    launch("dit", 0, 0, 1, start_s=5.0),
    launch("dit", 1, 2, 3, start_s=5.0),
)


def test_alike_encoders_trade_places_so_that_both_are_where_they_are_needed():
    plan = plan_of(*CROSSED, launch("dit", 2, 0, 1, start_s=7.0))

    traded = near_inputs(plan, CLUSTER, COSTS)

    assert ranks_of(traded, "vae") == {0: (0,), 1: (2,)}
    assert ranks_of(traded, "dit") == ranks_of(plan, "dit")
    times = [(one.ranks, one.start_s, one.duration_s) for one in plan.launches]
    assert [(one.ranks, one.start_s, one.duration_s) for one in traded.launches] == times


def test_launches_that_train_trade_where_their_encoders_cannot():
    unlike = replace(CROSSED[1], duration_s=1.5)

    traded = near_inputs(plan_of(CROSSED[0], unlike, *CROSSED[2:]), CLUSTER, COSTS)

    assert ranks_of(traded, "vae") == {0: (2,), 1: (0,)}
    assert ranks_of(traded, "dit") == {0: (2, 3), 1: (0, 1)}


@pytest.mark.parametrize(
    "unlike",
    [
        {"duration_s": 1.5},
        {"phase": 1, "start_s": 1.0},
        {"cascade": replace(CROSSED[1].cascade, module="text")},
        {"ranks": (0, 1)},
    ],
)
def test_unlike_encoders_do_not_trade(unlike):
    others = [replace(one, phase=1) for one in CROSSED[2:3]]
    last = launch("dit", 1, 2, 3, start_s=9.0, duration_s=3.0)
    plan = plan_of(CROSSED[0], replace(CROSSED[1], **unlike), *others, replace(last, phase=1))

    assert near_inputs(plan, CLUSTER, COSTS) == plan


def test_encoders_on_gpus_of_other_speed_do_not_trade():
    uneven = replace(CLUSTER, speeds=(1.0, 1.0, 0.5, 0.5))
    last = launch("dit", 1, 2, 3, start_s=9.0, duration_s=3.0)
    plan = plan_of(*CROSSED[:3], last)

    assert ranks_of(near_inputs(plan, CLUSTER, COSTS), "vae") == {0: (0,), 1: (2,)}
    assert near_inputs(plan, uneven, NodeCosts(cluster=uneven)) == plan


def test_an_encoder_does_not_trade_with_one_of_the_next_step():
    fill = launch("vae", 1, 0, start_s=0.0, steps_ahead=1)
    plan = plan_of(CROSSED[0], fill, CROSSED[2])

    assert near_inputs(plan, CLUSTER, COSTS) == plan


@pytest.mark.parametrize(("training_start_s", "is_traded"), [(5.6, True), (5.51, False)])
def test_no_trade_makes_a_result_come_late(training_start_s: float, is_traded: bool):
    near = launch("vae", 1, 0, start_s=4.5)  # ends at 5.5; from there a handoff takes 0.02 s
    assert COSTS.handoff_s(near.cascade, (0,), (0, 1)) == pytest.approx(0.022, abs=1e-3)
    plan = plan_of(
        CROSSED[0],
        near,
        launch("dit", 0, 0, 1, start_s=training_start_s),
        launch("dit", 1, 2, 3, start_s=9.0),
    )

    traded = ranks_of(near_inputs(plan, CLUSTER, COSTS), "vae")

    assert traded == ({0: (0,), 1: (2,)} if is_traded else {0: (2,), 1: (0,)})


def test_a_handoff_counts_for_each_rank_that_receives_it():
    # Alone, clip 0's result is larger than clip 1's; but two ranks receive that one.
    far, near = launch("vae", 0, 2, start_s=0.0), launch("vae", 1, 0, start_s=0.0)
    large, small = (
        replace(one, cascade=replace(one.cascade, num_tokens=tokens))
        for one, tokens in ((far, 12000), (near, 8000))
    )
    trained = (launch("dit", 0, 0, start_s=5.0), launch("dit", 1, 0, 1, start_s=7.0))

    assert near_inputs(plan_of(large, small, *trained), CLUSTER, COSTS) == plan_of(
        large, small, *trained
    )
    one_receiver = plan_of(large, small, trained[0], replace(trained[1], ranks=(0,)))
    assert ranks_of(near_inputs(one_receiver, CLUSTER, COSTS), "vae") == {0: (0,), 1: (2,)}


def test_no_encoder_comes_after_what_it_feeds_even_if_its_handoff_was_forgotten():
    far = launch("vae", 0, 2, start_s=0.0)
    forgotten = replace(far, cascade=replace(far.cascade, num_tokens=10**6))  # 25 s to rank 0
    after = launch("vae", 1, 0, start_s=4.5)
    plan = plan_of(
        forgotten, after, launch("dit", 0, 0, start_s=1.0), launch("dit", 1, 2, start_s=9.0)
    )

    assert near_inputs(plan, CLUSTER, COSTS) == plan
