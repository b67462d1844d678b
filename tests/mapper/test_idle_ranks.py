from dataclasses import replace

from arachne.mapper.idle_ranks import on_idle_ranks
from tests.mapper.hand_made import CLUSTER, COSTS, launch, plan_of, ranks_of

ENCODER = launch("vae", 0, 2, start_s=0.0, duration_s=1.0)
TRAINING = launch("dit", 0, 0, 1, start_s=9.0)


def test_an_encoder_moves_to_an_idle_rank_of_the_launch_that_it_feeds():
    moved = on_idle_ranks(plan_of(ENCODER, TRAINING), CLUSTER, COSTS)

    assert moved == plan_of(replace(ENCODER, ranks=(0,)), TRAINING)


def test_an_encoder_takes_the_rank_that_is_idle_all_the_time():
    half = launch("dit", 1, 0, start_s=0.5, duration_s=2.0)
    after = launch("dit", 3, 1, start_s=1.0, duration_s=2.0)

    moved = on_idle_ranks(plan_of(ENCODER, half, after, TRAINING), CLUSTER, COSTS)

    assert ranks_of(moved, "vae") == {0: (1,)}
    busy = plan_of(ENCODER, half, replace(after, start_s=0.0), TRAINING)
    assert on_idle_ranks(busy, CLUSTER, COSTS) == busy


def test_two_encoders_do_not_move_to_one_rank_at_once():
    text = launch("text", 0, 3, start_s=0.5)
    trained = launch("dit", 0, 0, start_s=9.0)

    moved = on_idle_ranks(plan_of(ENCODER, text, trained), CLUSTER, COSTS)

    assert ranks_of(moved, "vae") == {0: (0,)}
    assert ranks_of(moved, "text") == {0: (3,)}


def test_an_encoder_moves_to_ranks_of_its_own_speed_only():
    uneven = replace(CLUSTER, speeds=(0.5, 1.0, 1.0, 1.0))

    moved = on_idle_ranks(plan_of(ENCODER, TRAINING), uneven, replace(COSTS, cluster=uneven))

    assert ranks_of(moved, "vae") == {0: (1,)}


def test_an_encoder_that_feeds_two_launches_makes_neither_wait():
    stack = replace(ENCODER, cascade=replace(ENCODER.cascade, slots=(0, 1)))
    here = launch("dit", 1, 2, start_s=1.0)
    there = launch("dit", 0, 0, 1, start_s=9.0)

    plan = plan_of(stack, here, there)
    assert on_idle_ranks(plan, CLUSTER, COSTS) == plan
    later = plan_of(stack, replace(here, start_s=8.0), there)
    assert ranks_of(on_idle_ranks(later, CLUSTER, COSTS), "vae") == {0: (0,)}
