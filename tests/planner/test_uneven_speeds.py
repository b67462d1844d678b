"""Clusters whose GPUs differ in speed: slow ones get less to do."""

from random import Random

import pytest

from arachne.core.plan import Plan
from arachne.planner.lower_bound import lower_bound_s
from arachne.planner.problem import PlanningProblem
from arachne.planner.tree import BASELINES, plan_arachne
from tests.planner.dag_problems import EncoderCosts, check_dag, dag_problem, encoded
from tests.planner.problems import BUCKETS, batch_of

ONE_SLOW = (1.0, 1.0, 0.5, 1.0)
SLOW_NODE = (1.0,) * 4 + (0.6,) * 4


def uneven_problem(
    speeds: tuple[float, ...], *, seed: int = 0, is_encoding: bool
) -> PlanningProblem:
    batch = batch_of(*Random(seed).choices(BUCKETS, k=6 * len(speeds)))
    return dag_problem(
        encoded(batch, ("vae", "text")) if is_encoding else batch,
        len(speeds),
        EncoderCosts(speeds=speeds, launch_s_each=10.0, vae_second_per_token=0.1),
        iterations=1000,
        stack_tokens=512,
    )


def work(plan: Plan, gpu: int) -> float:
    """Clip tokens that a GPU works on, its share of each launch."""
    return sum(
        x.cascade.num_tokens * x.cascade.num_clips / x.degree
        for x in plan.launches
        if gpu in x.gpus and x.cascade.module == "dit"
    )


@pytest.mark.parametrize("is_encoding", [False, True])
def test_a_slow_gpu_works_on_less(is_encoding: bool):
    problem = uneven_problem(ONE_SLOW, is_encoding=is_encoding)

    plan = plan_arachne(problem)

    check_dag(plan, problem)
    others = [work(plan, gpu) for gpu in (0, 1, 3)]
    assert work(plan, 2) < 0.7 * min(others)
    assert plan.makespan_s <= 1.05 * lower_bound_s(problem)


@pytest.mark.parametrize("is_encoding", [False, True])
def test_a_slow_node_works_on_less(is_encoding: bool):
    problem = uneven_problem(SLOW_NODE, is_encoding=is_encoding)

    plan = plan_arachne(problem)

    check_dag(plan, problem)
    fast, slow = (sum(work(plan, gpu) for gpu in gpus) for gpus in (range(4), range(4, 8)))
    assert slow < 0.8 * fast
    assert plan.makespan_s <= 1.05 * lower_bound_s(problem)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("speeds", [ONE_SLOW, SLOW_NODE])
@pytest.mark.parametrize("is_encoding", [False, True])
def test_no_baseline_is_shorter(seed: int, speeds: tuple[float, ...], is_encoding: bool):
    problem = uneven_problem(speeds, seed=seed, is_encoding=is_encoding)

    makespan_s = plan_arachne(problem).makespan_s

    assert all(makespan_s <= baseline(problem).makespan_s for baseline in BASELINES)
    assert lower_bound_s(problem) <= makespan_s


def test_a_long_clip_avoids_the_slow_gpu():
    problem = dag_problem(batch_of("224x96x81", "96x64x1"), 4, EncoderCosts(speeds=ONE_SLOW))

    plan = plan_arachne(problem)

    (long,) = [x for x in plan.launches if x.cascade.bucket.frames == 81]
    assert long.gpus in ((0, 1), (0, 1, 2, 3))
    assert plan.makespan_s == pytest.approx(882.0)
