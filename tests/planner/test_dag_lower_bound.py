"""What no plan with encoders can beat, worked out by hand."""

import pytest

from arachne.core.batch import Batch
from arachne.core.errors import InfeasibleError
from arachne.planner.lower_bound import lower_bound_s
from arachne.planner.problem import PlanningProblem
from arachne.planner.tree import plan_arachne
from tests.planner.dag_problems import EncoderCosts, dag_problem, encoded
from tests.planner.problems import batch_of

IMAGE, VIDEO, LONG = "96x64x1", "96x64x33", "224x96x81"  # 24, 216 and 1,764 tokens


def bound_s(
    batch: Batch, num_gpus: int, costs: EncoderCosts, *, next_batch: Batch | None = None
) -> float:
    return lower_bound_s(dag_problem(batch, num_gpus, costs, next_batch=next_batch))


def test_encoders_count_with_training():
    # Eight images, 6 s to encode and 24 to train, on two GPUs.
    assert bound_s(encoded(batch_of(*[IMAGE] * 8), ("vae",)), 2, EncoderCosts()) == pytest.approx(
        8 * 30.0 / 2
    )


def test_a_clip_s_own_way_counts():
    # 54 s on the one GPU that may encode it, then 216 / 4 on all.
    assert bound_s(encoded(batch_of(VIDEO), ("vae", "text")), 4, EncoderCosts()) == pytest.approx(
        54.0 + 54.0
    )


def test_a_clip_s_own_way_counts_where_it_cannot_be_split():
    problem = PlanningProblem(
        batch=encoded(batch_of(VIDEO), ("vae", "text")),
        num_gpus=2,
        degrees=(1,),
        costs=EncoderCosts(),
    )

    assert lower_bound_s(problem) == pytest.approx(54.0 + 216.0)


def test_an_encoder_that_may_be_split_counts_at_its_best_degree():
    costs = EncoderCosts(vae_degrees=(1, 2))
    assert bound_s(encoded(batch_of(VIDEO), ("vae",)), 4, costs) == pytest.approx(27.0 + 54.0)


def test_training_has_to_fit_into_what_encoding_leaves():
    # Nothing can train before 441 s; then 4 · 1,764 s on eight GPUs.
    assert bound_s(encoded(batch_of(*[LONG] * 4), ("vae",)), 8, EncoderCosts()) == pytest.approx(
        441.0 + 4 * 1764.0 / 8
    )


def test_cached_clips_may_train_while_others_are_encoded():
    batch = encoded(batch_of(*[LONG] * 4), ("vae",), (), (), ())
    # The area of all: 441 + 4 · 1,764 s on eight GPUs.
    assert bound_s(batch, 8, EncoderCosts()) == pytest.approx((441.0 + 4 * 1764.0) / 8)


def test_the_next_step_s_encoders_count_and_wait_for_nothing():
    following = encoded(batch_of(*[VIDEO] * 10, step=1), ("vae",))
    assert bound_s(batch_of(VIDEO), 2, EncoderCosts(), next_batch=following) == pytest.approx(
        (216.0 + 540.0) / 2
    )
    alone = encoded(batch_of(LONG, step=1), ("vae",))
    assert bound_s(batch_of(LONG), 8, EncoderCosts(), next_batch=alone) == pytest.approx(441.0)


def test_stacking_saves_launches_of_encoders_too():
    batch = encoded(batch_of(*[IMAGE] * 4), ("text",))
    problem = dag_problem(batch, 1, StackedText(), stack_tokens=96)

    assert lower_bound_s(problem) == pytest.approx(4 * 24.0 + 40.0 + 4 * 4.0)


class StackedText(EncoderCosts):
    """Captions that take 40 s a launch beside their own time."""

    def launch_s(self, cascade, gpus):
        extra_s = 40.0 if cascade.module == "text" else 0.0
        return extra_s + EncoderCosts.launch_s(self, cascade, gpus)


def test_a_slow_gpu_has_less_room():
    # Three images of 24 s on a full-speed GPU and one of half speed: two here, one there.
    costs = EncoderCosts(speeds=(1.0, 0.5))
    assert bound_s(batch_of(*[IMAGE] * 3), 2, costs) == pytest.approx(48.0)


def test_a_launch_on_fast_and_slow_gpus_pays_for_both():
    # Together they take 24 / 2 / 0.5 s, one alone 24 s: no gain, and two GPUs are kept.
    costs = EncoderCosts(speeds=(1.0, 0.5), launch_s_each=6.0)
    problem = PlanningProblem(batch=batch_of(IMAGE), num_gpus=2, degrees=(2,), costs=costs)

    assert lower_bound_s(problem) == pytest.approx((12.0 + 6.0) / 0.5)


def test_an_encoder_that_fits_nowhere_is_named_with_its_clip_and_step():
    following = encoded(batch_of(IMAGE, VIDEO, step=1), (), ("vae",))
    problem = dag_problem(batch_of(), 2, EncoderCosts(vae_degrees=()), next_batch=following)

    with pytest.raises(
        InfeasibleError,
        match=r"clip .1.mp4. of the next step of .* for its vae encoder on each of 1 GPU, "
        ".*encode before step 1",
    ):
        lower_bound_s(problem)


@pytest.mark.parametrize("speeds", [(0.3, 1.0, 1.0, 0.3, 1.0), (1.0, 0.5, 1.0, 1.0, 1.0)])
def test_in_an_odd_world_blocks_from_both_ends_count_too(speeds: tuple[float, ...]):
    # The fast GPUs side by side are in no aligned block of their number.
    batch = encoded(batch_of(LONG), ("text",))
    problem = dag_problem(batch, 5, EncoderCosts(speeds=speeds), iterations=2000)
    plan = plan_arachne(problem)
    assert any(launch.gpus not in problem.blocks[launch.degree] for launch in plan.launches)
    assert lower_bound_s(problem) <= plan.makespan_s * (1.0 + 1e-9)
