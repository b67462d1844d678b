"""Every rank gets the same plan in time, whatever becomes of the planner."""

import os
import signal
import time

import pytest

from arachne.runtime.launcher import run_ranks
from arachne.runtime.plan_source import PlanSource
from tests.runtime.planning_functions import fallback_plan, made_plan
from tests.runtime.rank_groups import all_end, children, open_groups

pytestmark = pytest.mark.distributed


def plan_source(world, **options):
    """Plans of `planning_functions`, on all ranks of a world of their own."""
    return PlanSource(
        world,
        open_groups(world)[1].world,
        make_plan=made_plan,
        make_fallback=fallback_plan,
        **{"timeout_s": 60.0, "say": print, **options},
    )


def obtain_all(world, wishes, timeout_s, num_ahead):
    """Obtain a plan for every wish; the planners' names, the digests, what was said."""
    said, names, digests = [], [], []
    with plan_source(
        world, request_of=lambda step: (step, wishes[step]), timeout_s=timeout_s, say=said.append
    ) as plans:
        for step in range(len(wishes)):
            for ahead in range(step, min(step + num_ahead, len(wishes))):
                plans.request(ahead)
            plan = plans.obtain(step)
            assert plan.step == step
            names.append(plan.planner)
            digests.append(plan.digest)
        planners = children()
    assert all_end(planners, within_s=2.0), "the planning process outlived its source"
    return names, digests, said, os.getpid(), len(planners)


def obtained(wishes, *, timeout_s=20.0, num_ahead=1):
    by_rank = run_ranks(3, obtain_all, (wishes, timeout_s, num_ahead), timeout_s=30.0)
    names, digests, said, pid, _ = by_rank[0]
    for rank, (other_names, other_digests, other_said, _, num_planners) in enumerate(by_rank):
        assert (other_names, other_digests) == (names, digests)
        assert bool(rank) or num_planners == 1
        assert not rank or (other_said, num_planners) == ([], 0), "only rank 0 plans and speaks"
    fallbacks = [name == f"fallback {pid}" for name in names]
    return names, fallbacks, said


def test_all_ranks_get_the_plan_that_another_process_made_without_torch():
    names, fallbacks, said = obtained(["plan"] * 6, num_ahead=2)
    assert not any(fallbacks)
    assert said == []
    assert len(set(names)) == 1, "one process makes all plans"
    assert names[0].endswith("torch=False nice=10")
    assert not names[0].startswith(f"{os.getpid()} ")


@pytest.mark.parametrize("num_ahead", [1, 3])
@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        ("raise", "ValueError: no such thing"),
        ("exit", "its process ended"),
        ("die", "its process ended"),
    ],
)
def test_a_planner_that_fails_is_replaced_on_all_ranks_alike(wish, reason, num_ahead):
    _, fallbacks, said = obtained(["plan", wish, "plan", "plan"], num_ahead=num_ahead)
    assert fallbacks == [False, True, False, False]
    # A request that finds the process gone says so too; whether one does is a matter of moments.
    of_fallbacks = [line for line in said if "another one was started" not in line]
    assert of_fallbacks == [
        f"step 2: the planner failed ({reason}); using the static fallback plan"
    ]


@pytest.mark.parametrize("wish", ["late", "stop"])
def test_a_planner_that_is_late_is_ended_and_the_next_plan_is_made(wish):
    _, fallbacks, said = obtained(["plan", wish, "plan"], timeout_s=4.0, num_ahead=3)
    assert fallbacks == [False, True, False]
    assert said == [
        "step 2: the planner failed (no plan after 4 s); using the static fallback plan"
    ]


def obtain_hurried(world):
    said = []
    with plan_source(
        world, request_of=lambda step: (step, "late"), say=said.append, hurries=lambda: True
    ) as plans:
        begin_s = time.monotonic()
        plans.obtain(0)
        return time.monotonic() - begin_s, said


def test_a_run_that_is_to_stop_does_not_wait_for_a_plan():
    seconds, said = run_ranks(1, obtain_hurried, timeout_s=30.0)[0]
    assert seconds < 10.0
    assert said == [
        "step 1: the planner failed (none yet, and the run is to stop); using the static fallback "
        "plan"
    ]


def kill_the_idle_planner(world):
    said = []
    with plan_source(world, request_of=lambda step: (step, "plan"), say=said.append) as plans:
        plans.obtain(0)
        planners = children()
        for planner in planners:
            os.kill(planner, signal.SIGKILL)
        assert all_end(planners, within_s=2.0)
        time.sleep(0.5)
        plans.obtain(1)
    return said


def test_a_planner_that_was_killed_while_it_had_nothing_to_do_is_said():
    assert run_ranks(1, kill_the_idle_planner, timeout_s=60.0) == [
        ["step 2: the planning process had ended; another one was started"]
    ]


def test_a_plan_made_ahead_is_there_at_once():
    by_rank = run_ranks(3, obtain_with_pause, timeout_s=30.0)
    assert by_rank[0] < 1.0, "a plan takes 1.5 s"


def obtain_with_pause(world):
    with plan_source(world, request_of=lambda step: (step, "slow"), timeout_s=20.0) as plans:
        plans.obtain(0)
        plans.request(1)
        time.sleep(2.5)
        begin_s = time.monotonic()
        plans.obtain(1)
        return time.monotonic() - begin_s


def test_a_control_c_does_not_end_the_planner():
    _, fallbacks, said = obtained(["interrupt", "plan"])
    assert (fallbacks, said) == ([False, False], [])


def close_while_planning(world):
    plans = plan_source(world, request_of=lambda step: (step, "late"))
    plans.request(0)
    time.sleep(0.8 if world.rank == 0 else 0.0)
    planners, begin_s = children(), time.monotonic()
    plans.close()
    assert all_end(planners, within_s=2.0)
    return len(planners), time.monotonic() - begin_s


def test_closing_does_not_wait_for_a_plan():
    (num_planners, seconds), (num_others, _) = run_ranks(2, close_while_planning, timeout_s=30.0)
    assert (num_planners, num_others) == (1, 0)
    assert seconds < 2.0


def test_a_fallback_that_fails_ends_the_run():
    with pytest.raises(RuntimeError, match="no plan at all"):
        run_ranks(2, obtain_all, (["hopeless"], 20.0, 1), timeout_s=30.0)


def obtain_renewed(world):
    wishes, said = {0: "raise", 1: "raise"}, []
    with plan_source(world, request_of=lambda step: (step, wishes[step]), say=said.append) as plans:
        plans.request(0)
        plans.request(1)
        wishes.update({0: "plan", 1: "plan"})
        plans.renew()
        return [plans.obtain(step).planner for step in (0, 1)], said


def test_plans_are_made_again_where_what_they_depend_on_has_changed():
    for planners, said in run_ranks(2, obtain_renewed, timeout_s=30.0):
        assert said == []
        assert not any(planner.startswith("fallback") for planner in planners)
