"""Which clip is encoded where and when, for stacks whose blocks are known."""

from arachne.core.plan import Plan
from arachne.planner.encode_order import in_order
from arachne.planner.problem import Placement, PlanningProblem
from arachne.planner.schedule import scheduled_as_given
from arachne.planner.stacking import cascade_of
from tests.planner.dag_problems import EncoderCosts, check_dag, dag_problem, encoded
from tests.planner.problems import batch_of

IMAGE, VIDEO, LONG = "96x64x1", "96x64x33", "224x96x81"  # 24, 216 and 1,764 tokens


def ordered(problem: PlanningProblem, placements: list[Placement]) -> Plan:
    order = in_order(problem, placements, problem.duration_s)
    plan = scheduled_as_given(problem, "test", order.placements)
    assert plan.makespan_s <= order.makespan_s
    check_dag(plan, problem)
    return plan


def rows(plan: Plan) -> list[tuple[str, tuple[int, ...], tuple[int, ...], float]]:
    return [(x.cascade.module, x.cascade.slots, x.gpus, x.start_s) for x in plan.launches]


def test_clips_are_encoded_on_the_gpus_that_train_them():
    batch = encoded(batch_of(IMAGE, IMAGE, IMAGE), ("vae",))
    problem = dag_problem(batch, 2, EncoderCosts(hop_s=100.0))
    clips = [cascade_of(batch.clips, (slot,)) for slot in range(3)]
    vaes = [cascade_of(batch.clips, (slot,), "vae") for slot in range(3)]
    training = [(clips[0], (0,)), (clips[1], (0,)), (clips[2], (1,))]

    plan = ordered(problem, [*training, (vaes[2], (0,)), (vaes[1], (0,)), (vaes[0], (1,))])

    assert plan.makespan_s == 60.0


def test_cached_clips_train_while_another_gpu_encodes():
    batch = encoded(batch_of(IMAGE, IMAGE, IMAGE), (), ("vae",), ())
    problem = dag_problem(batch, 2, EncoderCosts(vae_second_per_token=1.5))
    training = [(cascade_of(batch.clips, (slot,)), (0,)) for slot in range(3)]

    plan = ordered(problem, [*training, (cascade_of(batch.clips, (1,), "vae"), (1,))])

    assert [row for row in rows(plan) if row[0] == "dit"][-1] == ("dit", (1,), (0,), 48.0)


def test_large_blocks_train_first_where_small_ones_would_wait():
    # The image's latents reach GPU 0 at 106 s; by then both GPUs have nearly trained the video.
    batch = encoded(batch_of(VIDEO, IMAGE), (), ("vae",))
    problem = dag_problem(batch, 2, EncoderCosts(hop_s=100.0))
    video, image = (cascade_of(batch.clips, (slot,)) for slot in (0, 1))

    plan = ordered(
        problem, [(video, (0, 1)), (image, (0,)), (cascade_of(batch.clips, (1,), "vae"), (1,))]
    )

    assert plan.makespan_s == 6.0 + 108.0 + 24.0


def test_small_blocks_train_first_so_that_unequal_encoding_costs_nothing():
    # GPU 0 encodes for 54 s; GPU 1 trains an image meanwhile; then both train the video.
    batch = encoded(batch_of(VIDEO, IMAGE, IMAGE), ("vae",), (), ())
    problem = dag_problem(batch, 2, EncoderCosts())
    video, *images = (cascade_of(batch.clips, (slot,)) for slot in range(3))
    vae = cascade_of(batch.clips, (0,), "vae")

    plan = ordered(problem, [(video, (0, 1)), *[(image, (1,)) for image in images], (vae, (0,))])

    assert plan.makespan_s == 54.0 + 108.0


def test_a_long_clip_is_encoded_first_if_its_training_is_long():
    batch = encoded(batch_of(LONG, *[IMAGE] * 2), ("vae",))
    problem = dag_problem(batch, 2, EncoderCosts())
    clips = [cascade_of(batch.clips, (slot,)) for slot in range(3)]
    vaes = [cascade_of(batch.clips, (slot,), "vae") for slot in range(3)]

    plan = ordered(
        problem,
        [(clips[0], (1,)), (clips[1], (0,)), (clips[2], (0,)), *[(vae, (0,)) for vae in vaes]],
    )

    # GPU 1 waits for the long clip, and for nothing else.
    assert plan.makespan_s == 441.0 + 1764.0


def test_the_next_step_is_encoded_after_all_training_small_blocks_first():
    following = encoded(batch_of(VIDEO, IMAGE, step=1), ("vae",))
    costs = EncoderCosts(vae_degrees=(1, 2))
    problem = dag_problem(batch_of(VIDEO, IMAGE), 2, costs, next_batch=following)
    video, image = (cascade_of(problem.batch.clips, (slot,)) for slot in (0, 1))
    vae_video, vae_image = (
        cascade_of(following.clips, (slot,), "vae", steps_ahead=1) for slot in (0, 1)
    )

    plan = ordered(problem, [(vae_video, (0, 1)), (video, (0,)), (vae_image, (1,)), (image, (1,))])

    assert rows(plan) == [
        ("dit", (0,), (0,), 0.0),
        ("dit", (1,), (1,), 0.0),
        ("vae", (1,), (1,), 24.0),
        ("vae", (0,), (0, 1), 216.0),
    ]
