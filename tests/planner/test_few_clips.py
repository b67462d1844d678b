"""A few clips on uneven GPUs: as short as the best that trying everything finds."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product
from math import inf
from random import Random

import pytest

from arachne.planner.few_clips import plan_few_clips
from arachne.planner.problem import PlanningProblem
from arachne.planner.stacking import cascade_of
from arachne.planner.tree import plan_arachne
from arachne.planner.variants import Variants
from tests.planner.dag_problems import EncoderCosts, check_dag, dag_problem
from tests.planner.problems import BUCKETS, batch_of

Gpus = tuple[int, ...]


def few_on_uneven(seed: int, worlds: Sequence[int]) -> PlanningProblem:
    rng = Random(seed)
    num_gpus = rng.choice(worlds)
    speeds = tuple(rng.choice((1.0, 1.0, 0.8, 0.5)) for _ in range(num_gpus))
    costs = EncoderCosts(speeds=(1.0, *speeds[1:]), launch_s_each=rng.choice((0.0, 20.0)))
    batch = batch_of(*rng.choices(BUCKETS, k=rng.randint(2, 3)))
    return dag_problem(batch, num_gpus, costs, iterations=2000)


def shortest_s(problem: PlanningProblem) -> float:
    """By trying all blocks for all clips."""
    every = [gpus for blocks in problem.blocks.values() for gpus in blocks]
    clips = problem.batch.clips
    seconds = [
        {gpus: problem.duration_s(cascade_of(clips, [slot]), gpus) for gpus in every}
        for slot in range(len(clips))
    ]
    best_s = inf
    for chosen in product(every, repeat=len(clips)):
        if not any(_cross(one, other) for one, other in combinations(chosen, 2)):
            loads_s = [0.0] * problem.num_gpus
            for slot, gpus in enumerate(chosen):
                for gpu in gpus:
                    loads_s[gpu] += seconds[slot][gpus]
            best_s = min(best_s, max(loads_s))
    return best_s


def _cross(one: Gpus, other: Gpus) -> bool:
    shared = len(set(one) & set(other))
    return 0 < shared < min(len(one), len(other))


@pytest.mark.parametrize("seed", range(10))
def test_it_is_as_short_as_the_best_of_all(seed: int):
    problem = few_on_uneven(seed, (3, 5, 6, 7, 9))
    plan = plan_few_clips(Variants(problem), "test", inf)
    assert plan is not None
    check_dag(plan, problem)
    assert plan.makespan_s == pytest.approx(shortest_s(problem), rel=1e-9)
    assert plan_arachne(problem).makespan_s <= plan.makespan_s


@pytest.mark.parametrize(
    "speeds",
    [
        (1.0, 1.0, 1.0, 0.5, 1.0, 0.8, 1.0, 1.0, 1.0),
        (1.0, 1.0, 1.0, 1.0, 0.8, 0.5, 0.5, 1.0, 0.5, 1.0, 0.5, 0.8, 0.5, 0.5, 1.0),
    ],
)
def test_worlds_with_too_many_trees_have_short_plans_too(speeds: tuple[float, ...]):
    costs = EncoderCosts(speeds=speeds, launch_s_each=100.0)
    problem = dag_problem(batch_of(*["224x96x81"] * 3), len(speeds), costs, iterations=2000)
    assert plan_arachne(problem).makespan_s <= shortest_s(problem) * (1.0 + 1e-9)


def test_nothing_is_given_that_is_no_shorter_or_for_which_there_is_no_time():
    problem = few_on_uneven(0, (5,))
    best = plan_few_clips(Variants(problem), "test", inf)
    assert best is not None
    assert plan_few_clips(Variants(problem), "test", best.makespan_s) is None
    hasty = replace(problem, iterations=0)
    assert plan_few_clips(Variants(hasty), "test", inf) is None


@pytest.mark.parametrize(("num_gpus", "num_clips"), [(65, 2), (8, 9)])
def test_large_problems_are_left_alone(num_gpus: int, num_clips: int):
    batch = batch_of(*[BUCKETS[0]] * num_clips)
    problem = dag_problem(batch, num_gpus, EncoderCosts(), iterations=2000)
    assert plan_few_clips(Variants(problem), "test", inf) is None
