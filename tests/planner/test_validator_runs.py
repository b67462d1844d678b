"""Many random problems with encoders through the validator, all planners on each.

Hypothesis looks for odd problems in `test_dag_laws.py`; here it is numbers that count. The slow
test runs problems 0 to 9,999, or those that ARACHNE_INSTANCES names: `2000:4000` is a part of them.
"""

from dataclasses import replace
from math import inf
from random import Random

import pytest

from arachne.core.blocks import plan_blocks
from arachne.core.errors import InfeasibleError
from arachne.core.plan import Plan
from arachne.planner.lower_bound import lower_bound_s
from arachne.planner.problem import PlanningProblem
from arachne.planner.registry import PEERS, PLANNERS
from tests.planner.dag_problems import EncoderCosts, check_dag, planned, random_dag_problem
from tests.planner.instances import instances

SLOW_PEERS = ("flexsp", "fcp", "gpipe")
CHEAP_PEERS = {name: planner for name, planner in PEERS.items() if name not in SLOW_PEERS}


@pytest.mark.parametrize(
    "seeds",
    [
        range(150),
        pytest.param(instances(10_000), marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
def test_every_plan_of_a_random_problem_is_valid_and_arachne_s_the_shortest(seeds: range):
    for seed in seeds:
        problem = random_dag_problem(Random(seed))
        try:
            bound_s = lower_bound_s(problem)
        except InfeasibleError as error:
            check_that_all_refuse(problem, str(error))
            continue
        plans = {name: planned(planner, problem) for name, planner in PLANNERS.items()}
        for name, plan in plans.items():
            if plan is not None:
                check_dag(plan, problem)
                check_blocks(plan, problem)
                assert bound_s <= plan.makespan_s, (seed, name)
        arachne = plans["arachne"]
        assert arachne is not None, seed
        assert all(
            plan is None or arachne.makespan_s <= plan.makespan_s for plan in plans.values()
        ), seed


@pytest.mark.parametrize(
    "seeds",
    [
        range(40),
        pytest.param(instances(2_000), marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
@pytest.mark.parametrize("name", CHEAP_PEERS)
def test_models_of_other_systems_encode_in_place(name: str, seeds: range):
    for seed in seeds:
        problem = without_memory_cap(random_dag_problem(Random(seed)))  # one of them keeps none
        plan = planned(CHEAP_PEERS[name], problem)
        if plan is not None:
            check_dag(plan, problem)


def check_blocks(plan: Plan, problem: PlanningProblem) -> None:
    """Launches are on blocks, whose process groups a runtime has made."""
    of_degree = plan_blocks(problem.num_gpus, problem.degrees)
    assert all(launch.gpus in of_degree[launch.degree] for launch in plan.launches)


def without_memory_cap(problem: PlanningProblem) -> PlanningProblem:
    costs = problem.costs
    assert isinstance(costs, EncoderCosts)
    return replace(problem, costs=replace(costs, max_tokens_per_gpu=inf))


def check_that_all_refuse(problem: PlanningProblem, message: str) -> None:
    assert "clip '" in message
    for planner in PLANNERS.values():
        assert planned(planner, problem) is None
