"""The referee: its plans are valid, its proofs hold, and the search comes close to it."""

import sys
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arachne.core.batch import Batch
from arachne.core.errors import ConfigError, InfeasibleError
from arachne.core.plan_rules import check_placed_plan
from arachne.mapper.placement import place
from arachne.planner.exact import plan_exact
from arachne.planner.lower_bound import lower_bound_s
from arachne.planner.problem import PlanningProblem
from arachne.planner.tree import plan_arachne
from tests.planner.problems import BUCKETS, TableCosts, batch_of, cluster_of, problem_of

pytest.importorskip("ortools")

few_clips = st.lists(st.sampled_from(BUCKETS), min_size=1, max_size=6).map(
    lambda buckets: batch_of(*buckets)
)


@given(batch=few_clips, num_gpus=st.sampled_from([1, 2, 3, 4, 6]), stack=st.sampled_from([0, 512]))
@settings(max_examples=25, deadline=None)
def test_bound_is_below_the_optimum_and_the_optimum_below_arachne(
    batch: Batch, num_gpus: int, stack: int
):
    problem = problem_of(batch, num_gpus, stack_tokens=stack, iterations=300)

    verdict = plan_exact(problem, time_limit_s=60.0)  # some families take seconds

    assert verdict.is_proved
    assert verdict.plan.planner == "exact"
    check_placed_plan(place(verdict.plan, cluster_of(num_gpus), 0), batch, num_gpus)
    assert lower_bound_s(problem) <= verdict.proved_s
    assert verdict.proved_s <= verdict.plan.makespan_s
    assert verdict.plan.makespan_s <= plan_arachne(problem).makespan_s


@given(batch=few_clips, launch_s_each=st.sampled_from([0.0, 40.0, 300.0]))
@settings(max_examples=30, deadline=None)
def test_the_optimum_is_that_of_trying_everything(batch: Batch, launch_s_each: float):
    costs = TableCosts(launch_s_each=launch_s_each)
    problem = PlanningProblem(batch=batch, num_gpus=2, degrees=(1, 2), costs=costs, iterations=0)
    shortest_s = float("inf")
    for choice in product(((0,), (1,), (0, 1)), repeat=len(batch.clips)):
        loads_s = [0.0, 0.0]
        for clip, gpus in zip(batch.clips, choice, strict=True):
            for gpu in gpus:
                loads_s[gpu] += launch_s_each + clip.num_tokens / len(gpus)
        shortest_s = min(shortest_s, max(loads_s))

    verdict = plan_exact(problem)

    assert verdict.plan.makespan_s == pytest.approx(shortest_s, rel=1e-4)
    assert verdict.proved_s <= shortest_s * (1.0 + 1e-9)


def test_a_search_that_did_not_look_is_improved_and_proved():
    problem = PlanningProblem(
        batch=batch_of("160x96x17", "224x96x81", *["96x64x33"] * 2, "160x96x33", *["96x64x1"] * 2),
        num_gpus=2,
        degrees=(1, 2),
        costs=TableCosts(launch_s_each=32.0),
        stack_tokens=128,
        iterations=0,
    )

    verdict = plan_exact(problem)

    assert verdict.is_proved
    assert verdict.plan.makespan_s < plan_arachne(problem).makespan_s


def test_no_time_leaves_the_search_s_plan_unproved():
    buckets = [BUCKETS[index % len(BUCKETS)] for index in range(40)]
    problem = problem_of(batch_of(*buckets), 12, iterations=10)

    verdict = plan_exact(problem, time_limit_s=0.01)

    assert not verdict.is_proved
    assert verdict.proved_s >= lower_bound_s(problem)


def test_an_empty_batch_is_the_empty_plan():
    verdict = plan_exact(problem_of(batch_of(), 4))

    assert verdict.plan.launches == ()
    assert verdict.is_proved


def test_a_clip_that_fits_nowhere_is_infeasible():
    problem = PlanningProblem(
        batch=batch_of("224x96x81"),
        num_gpus=2,
        degrees=(1, 2),
        costs=TableCosts(max_tokens_per_gpu=100),
    )

    with pytest.raises(InfeasibleError, match=r"needs 882 GB on each of 2 GPUs"):
        plan_exact(problem)


def test_a_missing_solver_is_named_with_the_extra_that_has_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)

    with pytest.raises(ConfigError, match=r"needs OR-tools.*pip install 'arachne\[planner\]'"):
        plan_exact(problem_of(batch_of("96x64x1"), 2))
