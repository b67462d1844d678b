"""Random plans come to their end under any delays; plans that two ranks run in different orders do
not. The waiting of the executor is modelled, see `adversary`; real ranks are in `test_handoff`.

The slow test takes 10,000 plans, or as many as ARACHNE_NUM_PLANS says.
"""

import os
from dataclasses import replace
from random import Random

import pytest

from arachne.core.placed_plan import PlacedPlan
from tests.runtime.adversary import (
    Act,
    Adversary,
    DeadlockError,
    Meet,
    Receive,
    Send,
    WrongMeetingError,
    acts_of_steps,
)
from tests.runtime.dag_plans import two_steps
from tests.runtime.test_handoff import launch, plan_of


def run_random_plans(seeds: range) -> int:
    """Random plans for worlds of 1 to 13 ranks; how many messages they sent in all."""
    num_sent = 0
    for seed in seeds:
        rng = Random(seed)
        acts = acts_of_steps(two_steps(rng, rng.choice((1, 2, 3, 4, 5, 6, 8, 13)), iterations=3))
        adversary = Adversary(acts=acts, rng=rng)
        adversary.run()
        assert adversary.num_turns == sum(map(len, acts)), "every rank did all that it had to"
        num_sent += sum(isinstance(act, Send) for of_rank in acts for act in of_rank)
    return num_sent


def test_500_random_plans_end_whatever_the_delays():
    assert run_random_plans(range(500)) > 1000


@pytest.mark.slow
def test_10_000_random_plans_end_whatever_the_delays():
    num_plans = int(os.environ.get("ARACHNE_NUM_PLANS", "10000"))
    assert run_random_plans(range(500, 500 + num_plans)) > 2 * num_plans


# Launch 1 trains what launch 0 encodes on rank 0; launch 3 on both ranks follows it.
CROSSING = plan_of(
    launch("vae", 0, ranks=(0,), start_s=0.0),
    launch("dit", 0, ranks=(1,), start_s=1.0),
    launch("dit", 1, ranks=(0, 1), start_s=2.0),
    launch("dit", 2, ranks=(0, 1), start_s=3.0),
    world_size=2,
)


def launches_swapped(plan: PlacedPlan, rank: int, first: int, second: int) -> list[list[Act]]:
    """What ranks do if one of them runs two launches the other way round."""
    launches = list(plan.launches)
    launches[first], launches[second] = launches[second], launches[first]
    swapped = acts_of_steps([replace(plan, launches=tuple(launches))])[rank]
    names = {f"launch {first} ": f"launch {second} ", f"launch {second} ": f"launch {first} "}
    acts = acts_of_steps([plan])
    acts[rank] = [_renamed(act, names) for act in swapped]
    return acts


def _renamed(act: Act, names: dict[str, str]) -> Act:
    if isinstance(act, Meet):
        for old, new in names.items():
            if old in act.what:
                return replace(act, what=act.what.replace(old, new))
    return act


def test_the_plan_in_its_order_ends():
    for seed in range(20):
        Adversary(acts=acts_of_steps([CROSSING]), rng=Random(seed)).run()


def test_an_encoder_that_its_rank_runs_too_late_is_caught_as_a_deadlock():
    for seed in range(20):
        acts = launches_swapped(CROSSING, rank=0, first=0, second=2)
        with pytest.raises(DeadlockError, match=r"rank 0 at Meet.*rank 1 at Receive"):
            Adversary(acts=acts, rng=Random(seed)).run()


def test_two_launches_that_one_rank_swaps_are_caught():
    for seed in range(20):
        acts = launches_swapped(CROSSING, rank=1, first=2, second=3)
        with pytest.raises(WrongMeetingError, match=r"launch (2|3) of 4.*launch (2|3) of 4"):
            Adversary(acts=acts, rng=Random(seed)).run()


def test_a_message_that_nobody_sends_is_caught():
    acts = acts_of_steps([CROSSING])
    acts[0] = [act for act in acts[0] if not isinstance(act, Send)]
    assert any(isinstance(act, Receive) for act in acts[1])
    with pytest.raises(DeadlockError):
        Adversary(acts=acts, rng=Random(0)).run()
