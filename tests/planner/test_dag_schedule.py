"""When training starts that has to wait for its encoders."""

from arachne.core.plan import Plan
from arachne.planner.schedule import scheduled, scheduled_as_given, scheduled_in_phases
from arachne.planner.stacking import cascade_of
from tests.planner.dag_problems import EncoderCosts, check_dag, dag_problem, encoded
from tests.planner.problems import batch_of

IMAGE, VIDEO = "96x64x1", "96x64x33"  # 24 and 216 tokens: 6 and 54 s of vae, 24 and 216 of training
BOTH = ("vae", "text")


def rows(plan: Plan) -> list[tuple[str, tuple[int, ...], float]]:
    return [(launch.cascade.module, launch.gpus, launch.start_s) for launch in plan.launches]


def test_training_waits_for_its_last_encoder_and_the_handoff():
    problem = dag_problem(encoded(batch_of(VIDEO), BOTH), 2, EncoderCosts(hop_s=5.0))
    clips = problem.batch.clips
    vae, text, dit = (cascade_of(clips, (0,), module) for module in ("vae", "text", "dit"))

    plan = scheduled_as_given(problem, "test", [(vae, (0,)), (text, (1,)), (dit, (0, 1))])

    assert rows(plan) == [("vae", (0,), 0.0), ("text", (1,), 0.0), ("dit", (0, 1), 54.0 + 5.0)]
    assert plan.makespan_s == 59.0 + 108.0
    check_dag(plan, problem)


def test_in_place_nothing_has_to_be_handed_over():
    problem = dag_problem(encoded(batch_of(VIDEO), BOTH), 1, EncoderCosts(hop_s=5.0))

    plan = scheduled(problem, "test", [(cascade_of(problem.batch.clips, (0,)), (0,))])

    assert rows(plan) == [("vae", (0,), 0.0), ("text", (0,), 54.0), ("dit", (0,), 58.0)]
    check_dag(plan, problem)


def test_a_cached_clip_does_not_wait():
    batch = encoded(batch_of(IMAGE, IMAGE), (), ("vae",))
    problem = dag_problem(batch, 2, EncoderCosts())
    cached, other = (cascade_of(batch.clips, (slot,)) for slot in (0, 1))
    vae = cascade_of(batch.clips, (1,), "vae")

    plan = scheduled_as_given(problem, "test", [(vae, (0,)), (cached, (1,)), (other, (1,))])

    assert rows(plan) == [("vae", (0,), 0.0), ("dit", (1,), 0.0), ("dit", (1,), 24.0)]


def test_phases_encode_what_they_train_and_the_last_one_fills_up():
    batch = encoded(batch_of(VIDEO, IMAGE), ("vae",))
    following = encoded(batch_of(VIDEO, step=1), ("vae",))
    problem = dag_problem(batch, 2, EncoderCosts(), next_batch=following)
    video, image = (cascade_of(batch.clips, (slot,)) for slot in (0, 1))

    plan = scheduled_in_phases(problem, "test", [[(video, (0,))], [(image, (1,))]])

    assert [
        (launch.phase, *row) for launch, row in zip(plan.launches, rows(plan), strict=True)
    ] == [
        (0, "vae", (0,), 0.0),
        (0, "dit", (0,), 54.0),
        (1, "vae", (0,), 270.0),  # GPU 0 has nothing left to train
        (1, "vae", (1,), 270.0),
        (1, "dit", (1,), 276.0),
    ]
    check_dag(plan, problem)
