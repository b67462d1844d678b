from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from arachne.core.plan_rules import check_placed_plan
from arachne.mapper.placement import place
from arachne.mapper.retiming import retimed
from tests.mapper.encoder_plans import (
    NodeCosts,
    cascade_of,
    nodes,
    random_batch,
    random_plan,
    uncached_batch,
)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_a_plan_that_starts_all_it_can_keeps_its_times(seed: int):
    rng = Random(seed)
    costs = NodeCosts(cluster=nodes(2))
    batch = random_batch(rng)
    placed = place(random_plan(rng, batch, costs), costs.cluster, 0)

    again = retimed(placed, costs)

    assert again == placed
    check_placed_plan(again, batch, 8)


def test_launches_wait_for_ranks_handoffs_and_barriers():
    costs = NodeCosts(cluster=nodes(2, 2))
    batch = uncached_batch("832x480x17", "832x480x17")
    vae, first, second = (
        cascade_of(batch, module, slot) for module, slot in (("vae", 0), ("dit", 0), ("dit", 1))
    )
    plan = PlacedPlan(
        step=0,
        planner="test",
        world_size=4,
        launches=(
            PlacedLaunch(cascade=vae, ranks=(0,), start_s=0.0, duration_s=9.0),
            PlacedLaunch(cascade=first, ranks=(2, 3), start_s=10.0, duration_s=9.0),
            PlacedLaunch(cascade=second, ranks=(0, 1), start_s=20.0, duration_s=9.0, phase=1),
        ),
    )

    encoded, trained, last = retimed(plan, costs).launches

    assert encoded.end_s == costs.launch_s(vae, (0,))
    assert trained.start_s == encoded.end_s + costs.handoff_s(vae, (0,), (2, 3))
    assert trained.duration_s == costs.launch_s(first, (2, 3))
    assert last.start_s == trained.end_s
