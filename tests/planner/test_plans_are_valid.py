"""Laws that every planner keeps, on random batches and every world size."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arachne.core.batch import Batch
from arachne.core.errors import InfeasibleError
from arachne.core.plan import Plan
from arachne.core.plan_rules import check_placed_plan
from arachne.mapper.placement import place
from arachne.planner.lower_bound import lower_bound_s
from arachne.planner.problem import PlanningProblem
from arachne.planner.registry import PLANNERS
from arachne.planner.tree import plan_arachne
from tests.planner.problems import (
    TableCosts,
    batch_of,
    batches,
    cluster_of,
    problem_of,
    stack_limits,
    worlds,
)

BASELINES = [planner for name, planner in PLANNERS.items() if name != "arachne"]


def check(plan: Plan, batch: Batch) -> None:
    check_placed_plan(place(plan, cluster_of(plan.num_gpus), 0), batch, plan.num_gpus)


@pytest.mark.parametrize("name", PLANNERS)
@given(batch=batches, num_gpus=worlds, stack_tokens=stack_limits)
@settings(max_examples=60, deadline=None)
def test_every_plan_trains_each_clip_once_on_free_gpus(
    name: str, batch: Batch, num_gpus: int, stack_tokens: int
):
    problem = problem_of(batch, num_gpus, stack_tokens=stack_tokens, iterations=30)

    plan = PLANNERS[name](problem)

    assert plan.planner == name
    check(plan, batch)
    for launch in plan.launches:
        assert launch.duration_s == problem.duration_s(launch.cascade, launch.gpus)
        assert launch.cascade.num_clips == 1 or (
            launch.cascade.num_clips * launch.cascade.num_tokens <= stack_tokens
        )


@given(batch=batches, num_gpus=worlds, stack_tokens=stack_limits)
@settings(max_examples=80, deadline=None)
def test_bound_is_below_arachne_and_arachne_is_below_every_baseline(
    batch: Batch, num_gpus: int, stack_tokens: int
):
    problem = problem_of(batch, num_gpus, stack_tokens=stack_tokens, iterations=40)

    makespan_s = plan_arachne(problem).makespan_s

    assert lower_bound_s(problem) <= makespan_s
    for baseline in BASELINES:
        assert makespan_s <= baseline(problem).makespan_s


@given(
    batch=batches,
    num_gpus=worlds,
    memory_bytes=st.sampled_from([8e7, 1.2e8, 2e8, 4e8]),
)
@settings(max_examples=80, deadline=None)
def test_tight_memory_gives_a_plan_that_fits_or_one_message(
    batch: Batch, num_gpus: int, memory_bytes: float
):
    problem = problem_of(batch, num_gpus, iterations=30, memory_bytes=memory_bytes)
    if _makespan_or_infinity(plan_arachne, problem) == float("inf"):
        for planner in PLANNERS.values():
            with pytest.raises(InfeasibleError, match="needs"):
                planner(problem)
        return

    plan = plan_arachne(problem)
    check(plan, batch)
    assert all(problem.costs.fits(launch.cascade, launch.gpus) for launch in plan.launches)
    for baseline in BASELINES:
        assert plan.makespan_s <= _makespan_or_infinity(baseline, problem)


def _makespan_or_infinity(
    planner: Callable[[PlanningProblem], Plan], problem: PlanningProblem
) -> float:
    try:
        return planner(problem).makespan_s
    except InfeasibleError:
        return float("inf")


@given(batch=batches, num_gpus=worlds, seed=st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_the_same_problem_gives_the_same_plan(batch: Batch, num_gpus: int, seed: int):
    first = plan_arachne(problem_of(batch, num_gpus, seed=seed))

    assert plan_arachne(problem_of(batch, num_gpus, seed=seed)) == first


@pytest.mark.parametrize("name", PLANNERS)
@pytest.mark.parametrize("num_gpus", [1, 2, 6, 7, 8, 12, 13])
def test_one_clip_is_planned_on_any_world(name: str, num_gpus: int):
    batch = batch_of("96x64x33")

    plan = PLANNERS[name](problem_of(batch, num_gpus))

    assert len(plan.launches) == 1
    check(plan, batch)


@pytest.mark.parametrize("name", PLANNERS)
@pytest.mark.parametrize("second_per_token", [0.0, 1e-30])
def test_launches_that_take_no_time_are_still_in_a_valid_order(name: str, second_per_token: float):
    batch = batch_of(*["96x64x1", "96x64x33", "160x96x17"] * 3)
    problem = PlanningProblem(
        batch=batch,
        num_gpus=4,
        degrees=(1, 2, 4),
        costs=TableCosts(second_per_token=second_per_token),
    )

    check(PLANNERS[name](problem), batch)


@pytest.mark.parametrize("name", PLANNERS)
def test_an_empty_batch_gives_an_empty_plan(name: str):
    assert PLANNERS[name](problem_of(batch_of(), 4, iterations=2000)).launches == ()
