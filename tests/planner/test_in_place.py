"""Where planners that decide about training alone have their encoders."""

from dataclasses import dataclass

import pytest

from arachne.core.cascade import Cascade
from arachne.core.errors import InfeasibleError
from arachne.planner.in_place import InPlace
from arachne.planner.problem import Placement
from arachne.planner.stacking import cascade_of
from arachne.planner.static_degree_longest_first import plan_static_degree_longest_first
from arachne.planner.static_dp import plan_static_dp
from arachne.planner.static_dp_longest_first import plan_static_dp_longest_first
from tests.planner.dag_problems import EncoderCosts, dag_problem, encoded
from tests.planner.problems import batch_of

IMAGE, VIDEO, LONG = "96x64x1", "96x64x33", "224x96x81"  # 6, 54 and 441 s of vae
BOTH = ("vae", "text")
TEXT = ("text",)


def rows(placements: list[Placement]) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    return [(cascade.module, cascade.slots, gpus) for cascade, gpus in placements]


def test_a_stack_is_spread_over_its_gpus_captions_from_the_other_end():
    problem = dag_problem(encoded(batch_of(*[IMAGE] * 3), BOTH), 4, EncoderCosts(), stack_tokens=96)
    stack = cascade_of(problem.batch.clips, (0, 1, 2))

    placements = InPlace(problem, "test").with_encoders(stack, (0, 1, 2, 3))

    assert rows(placements) == [
        ("vae", (0,), (0,)),
        ("vae", (1,), (1,)),
        ("vae", (2,), (2,)),
        ("text", (0,), (3,)),
        ("text", (1,), (2,)),
        ("text", (2,), (1,)),
        ("dit", (0, 1, 2), (0, 1, 2, 3)),
    ]


def test_more_clips_than_gpus_stay_stacked():
    problem = dag_problem(
        encoded(batch_of(*[IMAGE] * 5), ("vae",)), 2, EncoderCosts(), stack_tokens=120
    )
    stack = cascade_of(problem.batch.clips, range(5))

    placements = InPlace(problem, "test").with_encoders(stack, (0, 1))

    assert rows(placements)[:-1] == [("vae", (0, 1, 2), (0,)), ("vae", (3, 4), (1,))]


def test_one_long_clip_is_split_where_its_encoder_can_be():
    problem = dag_problem(encoded(batch_of(LONG), ("vae",)), 4, EncoderCosts(vae_degrees=(1, 2)))
    clip = cascade_of(problem.batch.clips, (0,))

    assert rows(InPlace(problem, "test").with_encoders(clip, (0, 1, 2, 3)))[0][2] == (0, 1)


def test_only_clips_that_are_not_cached_are_encoded():
    batch = encoded(batch_of(IMAGE, IMAGE), (), ("text",))
    problem = dag_problem(batch, 1, EncoderCosts(), stack_tokens=48)

    placements = InPlace(problem, "test").with_encoders(cascade_of(batch.clips, (0, 1)), (0,))

    assert rows(placements) == [("text", (1,), (0,)), ("dit", (0, 1), (0,))]


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoAtATime(EncoderCosts):
    """An autoencoder with memory for two clips."""

    def fits(self, cascade: Cascade, gpus: tuple[int, ...]) -> bool:
        return EncoderCosts.fits(self, cascade, gpus) and (
            cascade.module != "vae" or cascade.num_clips <= 2
        )


def test_a_stack_that_is_too_large_for_an_encoder_is_halved():
    problem = dag_problem(
        encoded(batch_of(*[IMAGE] * 5), ("vae",)), 1, TwoAtATime(), stack_tokens=120
    )
    stack = cascade_of(problem.batch.clips, range(5))

    placements = InPlace(problem, "test").with_encoders(stack, (0,))

    assert [cascade.slots for cascade, _ in placements[:-1]] == [(0, 1), (2, 3), (4,)]


def test_an_encoder_that_needs_two_gpus_is_refused_on_one_and_the_clip_named():
    batch = encoded(batch_of(IMAGE, VIDEO), (), ("vae",))
    problem = dag_problem(batch, 2, EncoderCosts(vae_degrees=(2,)))

    with pytest.raises(
        InfeasibleError, match=r"planner 'static_dp': clip '1.mp4' of .* for its vae encoder on"
    ):
        plan_static_dp(problem)
    assert {launch.degree for launch in plan_static_degree_longest_first(problem).launches} == {2}


def test_the_next_step_is_encoded_longest_first_where_gpus_are_free():
    following = encoded(batch_of(IMAGE, IMAGE, VIDEO, step=1), ("vae",))
    problem = dag_problem(batch_of(), 2, EncoderCosts(), next_batch=following)

    placements = InPlace(problem, "test").ahead([10.0, 0.0])

    assert rows(placements) == [("vae", (2,), (1,)), ("vae", (0,), (0,)), ("vae", (1,), (0,))]
    assert all(cascade.steps_ahead == 1 for cascade, _ in placements)


def test_blocks_of_two_see_what_single_gpus_were_given():
    following = encoded(batch_of(VIDEO, VIDEO, step=1), BOTH)
    costs = EncoderCosts(vae_degrees=(2,), text_s=40.0)
    problem = dag_problem(batch_of(), 4, costs, next_batch=following)

    placements = InPlace(problem, "test").ahead([0.0, 0.0, 0.0, 30.0])

    # Two captions on GPUs 0 and 1; then (2, 3) is free at 30 s, (0, 1) at 40 s.
    assert [gpus for _, gpus in placements] == [(0,), (1,), (2, 3), (0, 1)]


def test_longest_first_balances_encoders_too():
    # By training alone the images would all be on the second GPU; with captions it has three.
    batch = encoded(batch_of(VIDEO, *[IMAGE] * 4), (), TEXT, TEXT, TEXT, TEXT)
    problem = dag_problem(batch, 2, EncoderCosts(text_s=100.0))

    plan = plan_static_dp_longest_first(problem)

    assert plan.makespan_s == 3 * 124.0
