"""What is particular to each model of another system."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arachne.core.errors import InfeasibleError
from arachne.core.plan import Plan
from arachne.planner.chunks import even_chunks
from arachne.planner.fcp import plan_fcp
from arachne.planner.hotspa import plan_hotspa
from arachne.planner.knapformer import plan_knapformer
from arachne.planner.lb_mini import karmarkar_karp, plan_lb_mini
from arachne.planner.megatron_dynamic_cp import plan_megatron_dynamic_cp
from arachne.planner.megatron_hybrid_cp import plan_megatron_hybrid_cp
from arachne.planner.memory_cap import num_cap_violations
from arachne.planner.problem import PlanningProblem
from arachne.planner.static_lockstep import (
    plan_static_lockstep_zero1,
    plan_static_lockstep_zero1_least,
    plan_static_lockstep_zero3,
    plan_static_lockstep_zero3_least,
)
from tests.planner.problems import TableCosts, batch_of, problem_of

IMAGE, VIDEO, LONG = "96x64x1", "96x64x33", "224x96x81"  # 24, 216 and 1,764 tokens


def table_problem(*buckets: str, num_gpus: int, **costs: float) -> PlanningProblem:
    degrees = tuple(degree for degree in (1, 2, 4, 8) if degree <= num_gpus)
    return PlanningProblem(
        batch=batch_of(*buckets), num_gpus=num_gpus, degrees=degrees, costs=TableCosts(**costs)
    )


def rows(plan: Plan) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    return [(launch.phase, launch.gpus, launch.cascade.slots) for launch in plan.launches]


def test_karmarkar_karp_halves_the_textbook_example():
    # 8 7 6 5 4: 8−7=1, 6−5=1, 4−1=3, 3−1=2; the parts are 8+6 and 7+5+4.
    assert karmarkar_karp([8, 7, 6, 5, 4], 2) == [(1, 3, 4), (0, 2)]


def test_karmarkar_karp_leaves_parts_empty_where_there_are_too_few_items():
    assert karmarkar_karp([3.0, 1.0], 4) == [(0,), (1,), (), ()]
    assert karmarkar_karp([], 2) == [(), ()]
    assert karmarkar_karp([2.0, 1.0], 1) == [(0, 1)]


@given(st.lists(st.integers(0, 50), max_size=12), st.integers(1, 6))
def test_karmarkar_karp_keeps_every_item_and_the_greedy_guarantee(weights: list[int], parts: int):
    found = karmarkar_karp(weights, parts)

    assert len(found) == parts
    assert sorted(item for part in found for item in part) == list(range(len(weights)))
    sums = [sum(weights[item] for item in part) for part in found]
    assert sums == sorted(sums, reverse=True)
    assert sums[0] - sums[-1] <= max(weights, default=0)


def test_lb_mini_uses_single_gpus_and_no_barrier():
    plan = plan_lb_mini(table_problem(LONG, VIDEO, VIDEO, IMAGE, num_gpus=2))

    assert rows(plan) == [(0, (0,), (0,)), (0, (1,), (1,)), (0, (1,), (2,)), (0, (1,), (3,))]
    with pytest.raises(InfeasibleError, match="planner 'lb_mini'"):
        plan_lb_mini(table_problem(LONG, num_gpus=2, max_tokens_per_gpu=1000.0))


def test_a_stack_that_fits_nowhere_is_halved_until_it_does():
    problem = PlanningProblem(
        batch=batch_of(*[IMAGE] * 7),
        num_gpus=1,
        degrees=(1,),
        costs=TableCosts(max_tokens_per_gpu=50.0),
        stack_tokens=7 * 24,
    )

    slots = [launch.cascade.slots for launch in plan_lb_mini(problem).launches]
    assert sorted(slots) == [(0,), (1, 2), (3, 4), (5, 6)]


def test_zero1_deals_without_barrier_and_zero3_waits_after_each_micro_batch():
    problem = table_problem(VIDEO, IMAGE, IMAGE, VIDEO, num_gpus=2, launch_s_each=1000.0)

    assert rows(plan_static_lockstep_zero1(problem)) == [
        (0, (0,), (0,)),
        (0, (1,), (1,)),
        (0, (1,), (3,)),
        (0, (0,), (2,)),
    ]
    zero3 = plan_static_lockstep_zero3(problem)
    assert [launch.phase for launch in zero3.launches] == [0, 0, 1, 1]
    assert zero3.makespan_s == 2 * 1216.0


def test_the_least_is_what_memory_forces_and_the_best_may_be_larger():
    problem = table_problem(LONG, num_gpus=4, max_tokens_per_gpu=900.0)

    assert plan_static_lockstep_zero1_least(problem).launches[0].degree == 2
    assert plan_static_lockstep_zero1(problem).launches[0].degree == 4
    three_clips = table_problem(LONG, LONG, LONG, num_gpus=4, max_tokens_per_gpu=900.0)
    zero3 = plan_static_lockstep_zero3_least(three_clips)
    assert [(launch.degree, launch.phase) for launch in zero3.launches] == [(2, 0), (2, 0), (2, 1)]


def test_hybrid_cp_gives_degrees_by_length_and_fills_the_rest_of_the_gpus():
    # Tokens per rank 441: the long clip gets ⌈1764/441⌉ = 4 GPUs, the videos one each.
    problem = table_problem(VIDEO, LONG, VIDEO, VIDEO, VIDEO, num_gpus=8, launch_s_each=10.0)

    plan = plan_megatron_hybrid_cp(problem)

    assert rows(plan) == [
        (0, (0, 1, 2, 3), (1,)),
        (0, (4,), (0,)),
        (0, (5,), (2,)),
        (0, (6,), (3,)),
        (0, (7,), (4,)),
    ]


def test_hybrid_cp_makes_sequences_wait_that_would_pass_the_slack():
    # Two long clips fill both GPUs; the third would double a group's cost.
    plan = plan_megatron_hybrid_cp(table_problem(*[LONG] * 3, num_gpus=2, launch_s_each=1e6))

    assert [launch.phase for launch in plan.launches] == [0, 0, 1]


def test_dynamic_cp_leaves_no_gpu_idle_where_hybrid_does():
    # Memory asks for two GPUs a clip. Two clips take 100 + 1764/2 s side by side; the third takes
    # as long again on two GPUs, or 100 + 1764/4 s on four. Hybrid gives all clips one degree.
    problem = table_problem(*[LONG] * 3, num_gpus=4, max_tokens_per_gpu=900.0, launch_s_each=100.0)

    dynamic = plan_megatron_dynamic_cp(problem)

    assert [launch.degree for launch in dynamic.launches] == [2, 2, 4]
    assert dynamic.makespan_s == 982.0 + 541.0
    assert plan_megatron_hybrid_cp(problem).makespan_s == 3 * 541.0


def test_hotspa_switches_degree_between_ranges_of_length():
    # A launch costs 100 s: the images want single GPUs, the long clips all of them.
    problem = table_problem(LONG, *[IMAGE] * 4, num_gpus=4, launch_s_each=100.0)

    plan = plan_hotspa(problem)

    degrees = {launch.cascade.bucket.frames: launch.degree for launch in plan.launches}
    assert degrees == {81: 4, 1: 1}
    assert [launch.phase for launch in plan.launches] == [0, 1, 1, 1, 1]


def test_fcp_uses_degrees_that_are_no_power_of_two():
    plan = plan_fcp(problem_of(batch_of(LONG), 7, stack_tokens=0))

    assert plan.launches[0].degree in {5, 6, 7}


def test_knapformer_cuts_left_over_gpus_into_smaller_bags():
    # Only bags of 4 hold all clips in 441 s; the left-over GPUs of 7 are bags of 2 and 1.
    plan = plan_knapformer(table_problem(LONG, VIDEO, IMAGE, num_gpus=7))

    assert [launch.gpus for launch in plan.launches] == [(0, 1, 2, 3), (4, 5), (6,)]
    assert {launch.phase for launch in plan.launches} == {0}


def test_knapformer_ignores_the_cap_and_the_count_says_so():
    problem = problem_of(batch_of(*[LONG] * 3, IMAGE), 1, memory_bytes=1.2e8)

    plan = plan_knapformer(problem)

    assert num_cap_violations(plan, problem, is_packed=False) == 3
    assert num_cap_violations(plan, problem, is_packed=True) == 1


def test_a_pack_may_break_the_cap_though_each_of_its_launches_fits():
    problem = problem_of(batch_of(*[LONG] * 4), 1, memory_bytes=6e8)

    plan = plan_knapformer(problem)

    assert num_cap_violations(plan, problem, is_packed=False) == 0
    assert num_cap_violations(plan, problem, is_packed=True) == 1


@given(st.lists(st.integers(1, 20), min_size=1, max_size=9), st.integers(1, 9))
def test_chunks_are_neighbours_and_the_heaviest_is_as_light_as_can_be(
    weights: list[int], most: int
):
    chunks = even_chunks(weights, [float(weight) for weight in weights], most)

    assert [weight for chunk in chunks for weight in chunk] == weights
    assert len(chunks) <= most
    assert max(map(sum, chunks)) == _least_heaviest(weights, most)


def _least_heaviest(weights: list[int], most: int) -> int:
    if most == 1 or len(weights) == 1:
        return sum(weights)
    return min(
        max(sum(weights[:cut]), _least_heaviest(weights[cut:], most - 1) if weights[cut:] else 0)
        for cut in range(1, len(weights) + 1)
    )
