"""Many random problems with encoders through the validator, all planners on each.

Hypothesis looks for odd problems in `test_dag_laws.py`; here it is numbers that count. The slow
test runs problems 0 to 9,999, or those that ARACHNE_INSTANCES names: `2000:4000` is a part of them.
"""

import os
from dataclasses import replace
from math import inf
from random import Random

import pytest

from arachne.core.errors import InfeasibleError
from arachne.planner.lower_bound import lower_bound_s
from arachne.planner.problem import PlanningProblem
from arachne.planner.registry import PEERS, PLANNERS
from tests.planner.dag_problems import EncoderCosts, check_dag, planned, random_dag_problem

SLOW_PEERS = ("flexsp", "fcp", "gpipe")
FIRST, END = map(int, os.environ.get("ARACHNE_INSTANCES", "0:10000").split(":"))
CHEAP_PEERS = {name: planner for name, planner in PEERS.items() if name not in SLOW_PEERS}


@pytest.mark.parametrize(
    "seeds",
    [
        range(150),
        pytest.param(range(FIRST, END), marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
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
                assert bound_s <= plan.makespan_s, (seed, name)
        arachne = plans["arachne"]
        assert arachne is not None, seed
        assert all(
            plan is None or arachne.makespan_s <= plan.makespan_s for plan in plans.values()
        ), seed


@pytest.mark.parametrize(
    "num_instances", [40, pytest.param(2_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
@pytest.mark.parametrize("name", CHEAP_PEERS)
def test_models_of_other_systems_encode_in_place(name: str, num_instances: int):
    for seed in range(num_instances):
        problem = without_memory_cap(random_dag_problem(Random(seed)))  # one of them keeps none
        plan = planned(CHEAP_PEERS[name], problem)
        if plan is not None:
            check_dag(plan, problem)


def without_memory_cap(problem: PlanningProblem) -> PlanningProblem:
    costs = problem.costs
    assert isinstance(costs, EncoderCosts)
    return replace(problem, costs=replace(costs, max_tokens_per_gpu=inf))


def check_that_all_refuse(problem: PlanningProblem, message: str) -> None:
    assert "clip '" in message
    for planner in PLANNERS.values():
        assert planned(planner, problem) is None
