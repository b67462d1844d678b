from dataclasses import replace

import pytest

from arachne.core.batch import Batch, BatchClip
from arachne.core.bucket import Bucket
from arachne.core.families import family_named
from arachne.cost.cluster_files import load_cluster
from arachne.cost.launch_modes import CostOptions
from arachne.cost.model import CostModel
from arachne.planner.infeasible import does_not_fit
from arachne.planner.problem import PlanningProblem
from arachne.planner.stacking import cascade_of
from tests.planner.problems import TableCosts, batch_of

HUNYUAN = family_named("hunyuan_video")
BUCKET = Bucket.parse("848x480x129")
BATCH = Batch(
    step=0,
    clips=(
        BatchClip(name="waves.mp4", bucket=BUCKET, num_tokens=HUNYUAN.geometry.num_tokens(BUCKET)),
    ),
)
COSTS = CostModel(
    model=HUNYUAN.presets["hunyuanvideo-13b"], cluster=load_cluster("h100x16"), element_bytes=2
)
ADVICE = "lower data.resolution or data.frame_buckets, or use more GPUs or GPUs with more memory"


def message(problem: PlanningProblem, module="dit") -> str:
    cascade = cascade_of(problem.batch.clips, [0], module)
    return str(does_not_fit(problem, cascade, tuple(range(problem.num_gpus))))


def problem_with(costs, batch: Batch = BATCH) -> PlanningProblem:
    return PlanningProblem(batch=batch, num_gpus=16, degrees=(16,), costs=costs)


def test_the_arithmetic_and_what_would_fit_are_told_in_one_line():
    assert message(problem_with(COSTS)) == (
        "clip 'waves.mp4' of 848x480x129, 52,470 tokens, needs 120 GB on each of 16 GPUs, but "
        "73.6 GB may be used (weights 25.6 GB + gradients 51.3 GB + optimizer 9.62 GB + "
        "activations 32.5 GB + workspace 567 MB = 120 GB); fits with "
        "optimizer.gradients=bfloat16 and planner.recompute=auto (70.3 GB), or with "
        "optimizer.gradients=host (68.3 GB), or with lora.rank=16 (53.7 GB); or use GPUs with more "
        "memory"
    )


def with_memory(memory_bytes: float) -> CostModel:
    device = replace(COSTS.cluster.device, memory_bytes=memory_bytes)
    return replace(COSTS, cluster=replace(COSTS.cluster, device=device))


def test_where_nothing_else_helps_only_roomier_gpus_are_told():
    told = message(problem_with(with_memory(1e9)))

    assert told.endswith("workspace 567 MB = 120 GB); use GPUs with more memory")


@pytest.mark.parametrize(
    ("memory_gb", "advice"),
    [
        (76.0, "use GPUs with more memory"),  # weights and gradients alone take 76.9
        (80.0, "use more GPUs or GPUs with more memory"),  # with the optimizer 86.5
        (95.0, ADVICE),
    ],
)
def test_smaller_clips_and_more_gpus_are_told_only_where_they_can_help(memory_gb, advice):
    assert message(problem_with(with_memory(1e9 * memory_gb))).endswith(f"; or {advice}")


def test_only_settings_that_hold_a_launch_back_are_named():
    smaller = "lower data.resolution or data.frame_buckets"
    for memory_bytes, advice in (
        (125e9, f"raise planner.max_degree, or {smaller}, or use GPUs with more memory"),
        (145e9, f"raise planner.max_degree, or {ADVICE}"),  # the optimizer takes 9.62 GB
        # On 16 GPUs 120 GB are needed.
        (
            95e9,
            f"{smaller}, or raise planner.max_degree and use more GPUs, or use GPUs with more "
            "memory",
        ),
    ):
        few = replace(problem_with(with_memory(memory_bytes)), degrees=(1, 2, 4, 8))
        text = str(does_not_fit(few, cascade_of(BATCH.clips, [0]), tuple(range(8))))
        assert text.endswith(f"; or {advice}")

    little = with_memory(95e9)
    stack = cascade_of(BATCH.clips * 2, [0, 1])
    text = str(does_not_fit(problem_with(little), stack, tuple(range(16))))
    assert text.endswith("; or lower planner.stack_tokens, " + ADVICE.removeprefix("lower "))


@pytest.mark.parametrize(
    ("num_gpus", "memory_gb", "advice"),
    [
        (8, 101.0, "use more GPUs or GPUs with more memory"),  # which share out tokens too
        (8, 97.0, "set planner.ring=auto and use more GPUs, or use GPUs with more memory"),
        (24, 88.0, "set planner.ring=auto and use more GPUs, or use GPUs with more memory"),
        (32, 88.0, "set planner.ring=auto and use more GPUs, or use GPUs with more memory"),
        (32, 98.5, "set planner.ring=auto, or use GPUs with more memory"),  # 32 need 98.2
        (32, 101.0, "set planner.ring=auto, or use more GPUs or GPUs with more memory"),
    ],
)
def test_without_a_ring_more_gpus_than_heads_share_out_the_optimizer_only(
    num_gpus, memory_gb, advice
):
    little = with_memory(1e9 * memory_gb)
    cluster = replace(load_cluster(f"h100x{num_gpus}"), device=little.cluster.device)
    costs = replace(little, cluster=cluster, options=CostOptions(needs_heads=True))
    degrees = tuple(degree for degree in (1, 2, 3, 4, 6, 8, 12, 16, 24) if degree <= num_gpus)
    problem = replace(problem_with(costs), num_gpus=num_gpus, degrees=degrees)
    text = str(does_not_fit(problem, cascade_of(BATCH.clips, [0]), tuple(range(degrees[-1]))))
    assert text.endswith(f"lower data.resolution or data.frame_buckets, or {advice}")


def test_heads_that_are_no_degree_do_not_make_one_on_more_gpus():
    """Of 40 heads 32 GPUs are the most; only just 40 GPUs can have one each."""
    wan = family_named("wan")
    bucket = Bucket.parse("1280x720x113")
    clip = BatchClip(name="a.mp4", bucket=bucket, num_tokens=wan.geometry.num_tokens(bucket))
    costs = replace(
        COSTS,
        model=wan.presets["wan-14b"],
        cluster=load_cluster("a100-80gx32"),
        state=replace(COSTS.state, gradients="host"),
        options=CostOptions(recompute="none", needs_heads=True),
    )
    problem = PlanningProblem(
        batch=Batch(step=0, clips=(clip,)),
        num_gpus=32,
        degrees=(1, 2, 3, 4, 6, 8, 12, 16, 24, 32),
        costs=costs,
    )
    text = message(problem)
    assert text.endswith("set planner.ring=auto and use more GPUs, or use GPUs with more memory")


def test_settings_that_help_only_together_are_told_together():
    cluster = replace(load_cluster("h100x32"), device=with_memory(98.5e9).cluster.device)
    costs = replace(COSTS, cluster=cluster, options=CostOptions(needs_heads=True))
    problem = replace(problem_with(costs), num_gpus=32, degrees=(1, 2, 4))
    text = str(does_not_fit(problem, cascade_of(BATCH.clips, [0]), (0, 1, 2, 3)))
    assert text.endswith(
        "; or lower data.resolution or data.frame_buckets, or raise planner.max_degree and set "
        "planner.ring=auto, or use GPUs with more memory"
    )


def test_a_limit_that_these_gpus_only_just_reach_holds_more_gpus_back():
    device = with_memory(105e9).cluster.device
    costs = replace(COSTS, cluster=replace(COSTS.cluster, num_nodes=1, device=device))
    problem = replace(problem_with(costs), num_gpus=8, degrees=(1, 2, 4, 8))
    for max_degree, way in (
        (0, "use more GPUs or GPUs with more memory"),
        (8, "raise planner.max_degree and use more GPUs, or use GPUs with more memory"),
    ):
        text = message(replace(problem, max_degree=max_degree))
        assert text.endswith(f"; or lower data.resolution or data.frame_buckets, or {way}")


def test_what_bounds_the_shapes_is_named_as_the_problem_says():
    problem = replace(problem_with(with_memory(95e9)), shape_settings="--frame-cap")

    assert message(problem).endswith(
        "; or lower --frame-cap, or use more GPUs or GPUs with more memory"
    )


def test_costs_that_know_no_items_still_name_clip_and_memory():
    problem = problem_with(TableCosts(), batch_of("224x96x81"))

    assert message(problem) == (
        "clip '0.mp4' of 224x96x81, 1,764 tokens, needs 110 GB on each of 16 GPUs, but 80 GB may "
        f"be used; {ADVICE}"
    )


def test_an_encoder_that_does_not_fit_is_named():
    device = replace(COSTS.cluster.device, memory_bytes=1e9)
    little = replace(COSTS, cluster=replace(COSTS.cluster, device=device))

    text = message(problem_with(little), "vae")
    assert (
        "for its vae encoder on each of 16 GPUs, but 1 GB may be used (weights 25.6 GB + " in text
    )
    assert "encoders " in text
    assert text.endswith(
        "; encode before step 1 (data.encode=before; leave out --encode and --fill), or use GPUs "
        "with more memory"
    )


def test_a_clip_of_the_next_step_is_named_as_one():
    device = replace(COSTS.cluster.device, memory_bytes=1e9)
    little = replace(COSTS, cluster=replace(COSTS.cluster, device=device))
    ahead = replace(BATCH.clips[0], name="later.mp4", to_encode=("text",))
    problem = replace(problem_with(little), next_batch=Batch(step=1, clips=(ahead,)))
    cascade = cascade_of((ahead,), [0], "text", steps_ahead=1)

    text = str(does_not_fit(problem, cascade, (0,)))
    assert text.startswith(
        "clip 'later.mp4' of the next step of 848x480x129, 52,470 tokens, needs "
    )
    assert " for its text encoder on each of 1 GPU, but 1 GB may be used" in text


def test_a_launch_with_enough_memory_is_told_what_else_is_wrong():
    heads = replace(COSTS, options=CostOptions(needs_heads=True))
    images = Batch(
        step=0, clips=(BatchClip(name="a.png", bucket=Bucket.parse("848x480x1"), num_tokens=1590),)
    )
    roomy = replace(heads.cluster.device, memory_bytes=1e12)
    costs = replace(heads, cluster=replace(load_cluster("h100x32"), device=roomy))
    problem = PlanningProblem(batch=images, num_gpus=32, degrees=(32,), costs=costs)

    assert message(problem) == (
        "clip 'a.png' of 848x480x1, 1,590 tokens, would leave some of 32 GPUs without one of the "
        "model's 24 attention heads; lower planner.max_degree, or set planner.ring=auto"
    )
    without_kernel = CostOptions(ring="auto", needs_heads=True, can_ring=False)
    unable = replace(problem, costs=replace(costs, options=without_kernel))
    assert message(unable).endswith("attention heads; lower planner.max_degree")
