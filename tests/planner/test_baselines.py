from arachne.core.plan import Plan
from arachne.planner.problem import PlanningProblem
from arachne.planner.static_degree_longest_first import plan_static_degree_longest_first
from arachne.planner.static_dp import plan_static_dp
from arachne.planner.static_dp_longest_first import plan_static_dp_longest_first
from arachne.planner.static_sp import plan_static_sp
from tests.planner.problems import TableCosts, batch_of, problem_of

CLIPS = ("96x64x1", "224x96x81", "96x64x33", "160x96x33", "96x64x33")


def slots_on(plan: Plan, gpu: int) -> list[int]:
    return [launch.cascade.slots[0] for launch in plan.launches if gpu in launch.gpus]


def test_static_dp_deals_clips_in_turn():
    plan = plan_static_dp(problem_of(batch_of(*CLIPS), 2, stack_tokens=0))

    assert slots_on(plan, 0) == [0, 2, 4]
    assert slots_on(plan, 1) == [1, 3]


def test_longest_first_puts_the_longest_clip_alone():
    plan = plan_static_dp_longest_first(problem_of(batch_of(*CLIPS), 2, stack_tokens=0))

    assert slots_on(plan, 0) == [1]
    assert slots_on(plan, 1) == [3, 2, 4, 0]


def test_static_sp_uses_all_gpus_for_each_clip_in_order():
    plan = plan_static_sp(problem_of(batch_of(*CLIPS), 2, stack_tokens=0))

    assert slots_on(plan, 0) == slots_on(plan, 1) == [0, 1, 2, 3, 4]


def test_static_sp_uses_several_blocks_where_the_world_is_too_large():
    plan = plan_static_sp(problem_of(batch_of(*CLIPS), 8, stack_tokens=0, max_degree=4))

    assert {launch.gpus for launch in plan.launches} == {(0, 1, 2, 3), (4, 5, 6, 7)}


def test_the_best_single_degree_is_taken_for_all_clips():
    # Two equal clips on four GPUs: degree 2 keeps all busy and pays less than degree 4.
    problem = problem_of(batch_of("224x96x81", "224x96x81"), 4, stack_tokens=0)

    assert [launch.degree for launch in plan_static_degree_longest_first(problem).launches] == [
        2,
        2,
    ]


def test_a_degree_that_does_not_fit_is_passed_over():
    problem = PlanningProblem(
        batch=batch_of(*["224x96x81"] * 4),
        num_gpus=4,
        degrees=(1, 2, 4),
        costs=TableCosts(max_tokens_per_gpu=900.0),
    )

    assert {launch.degree for launch in plan_static_degree_longest_first(problem).launches} == {2}
