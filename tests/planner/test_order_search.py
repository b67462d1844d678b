"""Local search on whole plans: what it moves, and what it must not break."""

from random import Random

import pytest

from arachne.planner.order_search import OrderSearch
from arachne.planner.problem import Placement, PlanningProblem
from arachne.planner.schedule import end_s, scheduled_as_given
from arachne.planner.stacking import cascade_of, stacked_cascades
from arachne.planner.static_dp import plan_static_dp
from arachne.planner.variants import Variants
from tests.planner.dag_problems import (
    EncoderCosts,
    check_dag,
    dag_problem,
    encoded,
    planned,
    random_dag_problem,
)
from tests.planner.problems import batch_of

IMAGE, VIDEO, LONG = "96x64x1", "96x64x33", "224x96x81"  # 24, 216 and 1,764 tokens


def one_after_another(problem: PlanningProblem) -> list[Placement]:
    """Everything on GPU 0, encoders first."""
    return [
        (cascade, (0,))
        for ahead, batch in enumerate(problem.batches)
        for module in (("vae", "text") if ahead else ("vae", "text", "dit"))
        for cascade in stacked_cascades(batch, 0, module, steps_ahead=ahead)
    ]


def searched(problem: PlanningProblem, num_steps: int = 2000) -> tuple[list[Placement], float]:
    search = OrderSearch(Variants(problem), Random(0))
    placements, makespan_s = search.improved(one_after_another(problem), 0.0, num_steps)
    check_dag(scheduled_as_given(problem, "test", placements), problem)
    assert makespan_s == pytest.approx(end_s(problem, placements), rel=1e-12)
    return placements, makespan_s


def test_launches_move_to_other_gpus_and_before_others():
    # GPU 0 encodes the video, GPU 1 trains both images meanwhile, then both train the video.
    batch = encoded(batch_of(VIDEO, IMAGE, IMAGE), ("vae",), (), ())

    _, makespan_s = searched(dag_problem(batch, 2, EncoderCosts()))

    assert makespan_s == 54.0 + 108.0


def test_a_long_clip_takes_more_gpus_though_others_have_to_make_room():
    batch = encoded(batch_of(LONG, *[IMAGE] * 8), ("vae",), *[()] * 8)

    _, makespan_s = searched(dag_problem(batch, 4, EncoderCosts()))

    assert makespan_s == 441.0 + 441.0


@pytest.mark.parametrize(("stack_tokens", "least_s"), [(0, 3 * 100.0), (48, 2 * 100.0)])
def test_clips_are_stacked_where_that_saves_a_launch(stack_tokens: int, least_s: float):
    problem = dag_problem(
        batch_of(IMAGE, IMAGE, IMAGE),
        1,
        EncoderCosts(launch_s_each=100.0),
        stack_tokens=stack_tokens,
    )

    placements, makespan_s = searched(problem, 200)

    assert makespan_s == least_s + 3 * 24.0
    assert sorted(slot for cascade, _ in placements for slot in cascade.slots) == [0, 1, 2]


def test_clips_are_dealt_anew_so_that_cached_ones_need_not_wait():
    # GPUs 0 and 1 encode a video each and train it; GPU 2 trains the cached ones. In pairs of one
    # each, nothing could train before 216 s.
    batch = encoded(batch_of(*[VIDEO] * 4), ("vae",), (), ("vae",), ())
    costs = EncoderCosts(vae_second_per_token=1.0)
    problem = dag_problem(batch, 3, costs, stack_tokens=2 * 216)
    mixed = [(cascade_of(batch.clips, pair), (0, 1, 2)) for pair in ((0, 1), (2, 3))]
    encoders = [(cascade_of(batch.clips, (slot,), "vae"), (slot // 2,)) for slot in (0, 2)]
    search = OrderSearch(Variants(problem), Random(0))

    _, makespan_s = search.improved([*encoders, *mixed], 0.0, 3000)

    assert makespan_s == 2 * 216.0


def test_the_next_step_is_encoded_last_unless_that_takes_longer():
    following = encoded(batch_of(VIDEO, step=1), ("vae",))
    costs = EncoderCosts(vae_second_per_token=1.0)
    alone = dag_problem(batch_of(VIDEO), 1, costs, next_batch=following)
    waiting = dag_problem(
        encoded(batch_of(VIDEO), ("vae",)), 2, EncoderCosts(), next_batch=following
    )

    backwards = one_after_another(alone)[::-1]
    last, _ = OrderSearch(Variants(alone), Random(0)).improved(backwards, 0.0, 0)
    assert [cascade.module for cascade, _ in last] == ["dit", "vae"]
    # GPU 1 encodes for the next step while GPU 0 encodes what both then train.
    assert searched(waiting)[1] == 54.0 + 108.0


def test_no_steps_and_no_launches_leave_a_plan_as_it_is():
    problem = dag_problem(encoded(batch_of(VIDEO), ("vae",)), 2, EncoderCosts())
    start = one_after_another(problem)

    assert OrderSearch(Variants(problem), Random(0)).improved(start, 0.0, 0) == (start, 270.0)
    assert OrderSearch(Variants(dag_problem(batch_of(), 2, EncoderCosts())), Random(0)).improved(
        [], 0.0, 5
    ) == ([], 0.0)


def test_random_plans_stay_valid_and_get_no_longer():
    num_tried = 0
    for seed in range(60):
        problem = random_dag_problem(Random(seed))
        start = planned(plan_static_dp, problem)
        if start is not None:
            num_tried += 1
            placements = [(launch.cascade, launch.gpus) for launch in start.launches]
            found, makespan_s = OrderSearch(Variants(problem), Random(seed)).improved(
                placements, 0.0, 60
            )
            plan = scheduled_as_given(problem, "test", found)
            check_dag(plan, problem)
            assert plan.makespan_s <= start.makespan_s * (1.0 + 1e-12)
            assert plan.makespan_s == pytest.approx(makespan_s, rel=1e-12)
    assert num_tried > 20
