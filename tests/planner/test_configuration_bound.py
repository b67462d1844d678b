import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arachne.core.batch import Batch
from arachne.planner.configuration_bound import configuration_bound_s
from arachne.planner.lower_bound import lower_bound_s
from arachne.planner.problem import PlanningProblem
from arachne.planner.tree import plan_arachne
from tests.planner.problems import (
    BUCKETS,
    TableCosts,
    batch_of,
    batches,
    problem_of,
    stack_limits,
    worlds,
)

few_clips = st.lists(st.sampled_from(BUCKETS), min_size=1, max_size=6).map(
    lambda buckets: batch_of(*buckets)
)


def problem_with(costs: TableCosts, *buckets: str, num_gpus: int = 2) -> PlanningProblem:
    return PlanningProblem(batch=batch_of(*buckets), num_gpus=num_gpus, degrees=(1,), costs=costs)


def test_no_clips_take_no_time():
    assert configuration_bound_s(problem_with(TableCosts())) == 0.0


def test_three_equal_clips_on_two_gpus_take_twice_one():
    # By area 1.5 clips a GPU would do; but a GPU holds one clip or two, never one and a half.
    problem = problem_with(TableCosts(), *["96x64x33"] * 3)

    assert lower_bound_s(problem) == pytest.approx(216.0 * 1.5)
    assert configuration_bound_s(problem) == pytest.approx(216.0 * 1.5 * 4 / 3, rel=0.01)


def test_launches_that_take_no_time_leave_the_area_bound():
    problem = problem_with(TableCosts(second_per_token=1e-30), *["96x64x33"] * 3)

    assert configuration_bound_s(problem) >= lower_bound_s(problem)


def test_a_shape_too_short_to_count_is_left_out():
    problem = problem_with(TableCosts(), *["224x96x81"] * 40, *["96x64x1"] * 40)

    assert configuration_bound_s(problem) <= plan_arachne(problem).makespan_s


@given(batch=few_clips, num_gpus=st.sampled_from([1, 2, 3, 4, 6]), stack=stack_limits)
@settings(max_examples=25, deadline=None)
def test_no_optimum_is_shorter(batch: Batch, num_gpus: int, stack: int):
    pytest.importorskip("ortools")
    from arachne.planner.exact import plan_exact

    problem = problem_of(batch, num_gpus, stack_tokens=stack, iterations=300)
    verdict = plan_exact(problem, time_limit_s=5.0)

    assert lower_bound_s(problem) <= configuration_bound_s(problem)
    assert configuration_bound_s(problem) <= verdict.plan.makespan_s


@given(
    batch=batches,
    num_gpus=worlds,
    stack=stack_limits,
    launch_s_each=st.sampled_from([0.0, 20.0, 300.0]),
)
@settings(max_examples=25, deadline=None)
def test_no_plan_is_shorter(batch: Batch, num_gpus: int, stack: int, launch_s_each: float):
    problem = PlanningProblem(
        batch=batch,
        num_gpus=num_gpus,
        degrees=problem_of(batch, num_gpus).degrees,
        costs=TableCosts(launch_s_each=launch_s_each),
        stack_tokens=stack,
        iterations=400,
    )

    assert configuration_bound_s(problem) <= plan_arachne(problem).makespan_s * (1.0 + 1e-9)
