"""Plans of other systems without their barriers: what ours is never longer than."""

from dataclasses import replace
from random import Random

import pytest

from arachne.core.blocks import plan_blocks
from arachne.planner.fcp import plan_fcp
from arachne.planner.peer_starts import SYSTEMS, peer_plans
from arachne.planner.problem import PlanningProblem
from arachne.planner.tree import plan_arachne
from tests.planner.dag_problems import (
    EncoderCosts,
    check_dag,
    dag_problem,
    planned,
    random_dag_problem,
)
from tests.planner.problems import TableCosts, batch_of

IMAGE, VIDEO = "96x64x1", "96x64x33"  # 24 and 216 tokens


def on_blocks(problem: PlanningProblem) -> list[float]:
    """Makespans of the systems' own plans, with barriers, that use no groups but ours."""
    of_degree = plan_blocks(problem.num_gpus, problem.degrees)
    plans = [plan for system in SYSTEMS if (plan := planned(system, problem)) is not None]
    return [
        plan.makespan_s
        for plan in plans
        if all(launch.gpus in of_degree.get(launch.degree, ()) for launch in plan.launches)
    ]


def test_arachne_is_never_longer_than_a_system_whose_groups_it_has():
    num_compared = 0
    for seed in range(60):
        problem = random_dag_problem(Random(seed), iterations=400)
        mine = planned(plan_arachne, problem)
        for theirs_s in on_blocks(problem):
            num_compared += 1
            assert mine is not None
            assert mine.makespan_s <= theirs_s * (1.0 + 1e-12), seed
    assert num_compared > 60


def test_without_barriers_plans_are_valid_and_no_longer():
    for seed in range(40):
        problem = random_dag_problem(Random(seed), iterations=400)
        plans = peer_plans(problem, "test")
        for plan in plans:
            check_dag(plan, problem)
            assert all(launch.phase == 0 for launch in plan.launches)
        for plan, theirs_s in zip(plans, on_blocks(problem), strict=True):
            assert plan.makespan_s <= theirs_s * (1.0 + 1e-12)


@pytest.mark.parametrize("seed", [135, 184, 196])
def test_a_start_may_lie_on_blocks_that_the_search_does_not_try(seed: int):
    """With encoders in odd worlds, which are planned on aligned blocks alone."""
    problem = random_dag_problem(Random(seed), iterations=400)
    tried = {gpus for blocks in problem.blocks.values() for gpus in blocks}
    used = {launch.gpus for plan in peer_plans(problem, "test") for launch in plan.launches}
    assert used - tried
    check_dag(plan_arachne(problem), problem)


def test_groups_that_are_no_blocks_are_left_out():
    # fcp gives the long video three GPUs; there are only blocks of one, two and four.
    problem = PlanningProblem(
        batch=batch_of("224x96x33", "160x96x17"),
        num_gpus=4,
        degrees=(1, 2, 4),
        costs=TableCosts(launch_s_each=300.0),
    )
    assert {launch.degree for launch in plan_fcp(problem).launches} == {1, 3}

    assert len(peer_plans(problem, "test")) == len(SYSTEMS) - 1


@pytest.mark.parametrize(("iterations", "num_gpus"), [(399, 8), (400, 2049)])
def test_short_searches_and_large_problems_do_not_ask(iterations: int, num_gpus: int):
    problem = replace(dag_problem(batch_of(IMAGE), 8, EncoderCosts()), iterations=iterations)

    assert peer_plans(replace(problem, num_gpus=num_gpus), "test") == []
