"""Laws that plans with encoders keep, on random problems of any world."""

from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arachne.core.errors import InfeasibleError
from arachne.core.plan import Plan
from arachne.planner.lower_bound import lower_bound_s
from arachne.planner.problem import Planner, PlanningProblem
from arachne.planner.registry import PLANNERS
from arachne.planner.tree import BASELINES, plan_arachne
from tests.planner.dag_problems import check_dag, random_dag_problem

problems = st.randoms(use_true_random=False).map(random_dag_problem)


@pytest.mark.parametrize("name", PLANNERS)
@given(problem=problems)
@settings(max_examples=60, deadline=None)
def test_every_plan_is_valid_and_every_refusal_names_a_clip(name: str, problem: PlanningProblem):
    plan, refusal = plan_or_refusal(PLANNERS[name], problem)

    if plan is None:
        assert "clip '" in refusal
    else:
        assert plan.planner == name
        check_dag(plan, problem)  # raises InfeasibleError too


@given(problem=problems)
@settings(max_examples=150, deadline=None)
def test_bound_is_below_arachne_and_arachne_below_every_baseline(problem: PlanningProblem):
    makespan_s = makespan_or_infinity(plan_arachne, problem)

    assert bound_or_infinity(problem) <= makespan_s
    assert (bound_or_infinity(problem) == inf) == (makespan_s == inf)
    for baseline in BASELINES:
        assert makespan_s <= makespan_or_infinity(baseline, problem)


@pytest.mark.parametrize("seed", range(12))
def test_the_same_problem_gives_the_same_plan(seed: int):
    first, second = (random_dag_problem(Random(seed), iterations=200) for _ in range(2))
    if bound_or_infinity(first) < inf:
        assert plan_arachne(first) == plan_arachne(second)


def plan_or_refusal(planner: Planner, problem: PlanningProblem) -> tuple[Plan | None, str]:
    try:
        return planner(problem), ""
    except InfeasibleError as error:
        return None, str(error)


def makespan_or_infinity(planner: Planner, problem: PlanningProblem) -> float:
    plan, _ = plan_or_refusal(planner, problem)
    return inf if plan is None else plan.makespan_s


def bound_or_infinity(problem: PlanningProblem) -> float:
    try:
        return lower_bound_s(problem)
    except InfeasibleError:
        return inf
