import pickle
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arachne.core.batch import Batch, BatchClip
from arachne.core.blocks import plan_blocks
from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade
from arachne.core.errors import ConfigError, InfeasibleError
from arachne.core.families import family_named
from arachne.core.plan import Plan
from arachne.core.plan_rules import check_placed_plan
from arachne.cost.cluster_files import load_cluster
from arachne.cost.launch_modes import CostOptions
from arachne.cost.model import CostModel
from arachne.cost.training_state import TrainingState
from arachne.planner import tree
from arachne.planner.budget import iterations_within
from arachne.planner.problem import PlanningProblem
from arachne.planner.registry import PLANNERS
from arachne.planner.static_sp import plan_static_sp
from arachne.runtime.attention_kernels import kernel_named
from arachne.simulator.simulate import simulate
from arachne.trainer.built_model import DTYPES
from arachne.trainer.config import RunConfig
from arachne.trainer.planning import PlanRequest, placed_plan, plan_batch, run_costs, run_request
from arachne.trainer.settings.data import DataSettings
from arachne.trainer.settings.model import ModelSettings
from arachne.trainer.settings.planner import PlannerSettings
from arachne.trainer.settings.run import RunSettings
from tests.planner.dag_problems import encoded
from tests.planner.problems import BUCKETS, batch_of, cluster_of, costs_of
from tests.runtime.test_attention_kernels import OnGpu


def test_a_request_gives_a_valid_plan_for_its_step():
    batch = batch_of(*BUCKETS, step=5)

    plan = plan_batch(PlanRequest(batch=batch, costs=costs_of(6), iterations=50))

    check_placed_plan(plan, batch, 6)
    assert plan.planner == "arachne"


def test_a_run_that_encodes_in_steps_pays_for_its_own_encoders_and_keeps_them_in_memory():
    def costs(video_encoder: str, **data: Any) -> CostModel:
        model = ModelSettings(preset="wan-1.3b", video_encoder=video_encoder)
        config = RunConfig(
            run=RunSettings(dir="run", steps=1),
            data=DataSettings(path="clips", cache="cache", **data),
            model=model,
        )
        shape = model.shape(latent_channels=16, text_size=4096)
        return run_costs(config, shape, cluster_of(2), on_gpus=False)

    (clip,) = encoded(batch_of(BUCKETS[-1]), ("vae",)).clips
    cascade = Cascade(module="vae", slots=(0,), bucket=clip.bucket, num_tokens=clip.num_tokens)
    before, codec, folder = (
        costs("dct"),
        costs("dct", encode="online"),
        costs("some/folder", encode="online"),
    )
    assert before.encoders is None
    assert codec.launch_s(cascade, (0,)) < 0.01 * folder.launch_s(cascade, (0,))
    resident = [each.memory(cascade, (0,)).encoders for each in (codec, folder)]
    assert resident == [0.0, 4.0 * family_named("wan").video_encoder.num_parameters]


def test_a_pickled_request_gives_the_same_plan():
    request = PlanRequest(batch=batch_of(*BUCKETS), costs=costs_of(4), iterations=50)

    assert plan_batch(pickle.loads(pickle.dumps(request))) == plan_batch(request)


def test_max_degree_is_kept_and_zero_means_no_limit():
    batch = batch_of("224x96x81")
    limited = plan_batch(PlanRequest(batch=batch, costs=costs_of(4), max_degree=2, iterations=50))
    free = plan_batch(PlanRequest(batch=batch, costs=costs_of(4), max_degree=0, iterations=50))

    assert limited.launches[0].degree == 2
    assert free.launches[0].degree == 4


def roomy_costs() -> CostModel:
    """Four GPUs with memory for Wan's text encoder."""
    return costs_of(4, memory_bytes=64e9)


def test_the_next_step_s_encoders_are_planned_and_checked():
    batch = batch_of(*BUCKETS)
    following = encoded(batch_of(*BUCKETS, step=1), ("vae", "text"))

    plan = plan_batch(
        PlanRequest(batch=batch, next_batch=following, costs=roomy_costs(), iterations=50)
    )

    check_placed_plan(plan, batch, 4, next_batch=following)
    encoders = [launch.cascade for launch in plan.launches if launch.cascade.module != "dit"]
    assert sum(cascade.num_clips for cascade in encoders) == 2 * len(BUCKETS)
    assert all(cascade.steps_ahead == 1 for cascade in encoders)


def test_a_step_that_encodes_its_own_clips_is_planned():
    batch = encoded(batch_of(*BUCKETS), ("vae", "text"))

    plan = plan_batch(PlanRequest(batch=batch, costs=roomy_costs(), iterations=50))

    check_placed_plan(plan, batch, 4)


def test_degrees_are_multiples_of_a_domain():
    request = PlanRequest(batch=batch_of(*BUCKETS), costs=costs_of(12), domain=4, iterations=50)

    assert request.problem.degrees == (4, 8, 12)
    assert all(launch.degree % 4 == 0 for launch in plan_batch(request).launches)
    with pytest.raises(ConfigError, match=r"10 GPUs .* do not allow groups of 4"):
        plan_batch(replace(request, costs=costs_of(10)))


def test_baselines_that_are_placed_beside_the_search_s_plan_are_planned_once(
    monkeypatch: pytest.MonkeyPatch,
):
    asked: list[PlanningProblem] = []

    def counted(problem: PlanningProblem) -> Plan:
        asked.append(problem)
        return plan_static_sp(problem)

    monkeypatch.setattr(tree, "BASELINES", (counted,))
    costs = costs_of(12)
    on_two_nodes = replace(costs, cluster=replace(costs.cluster, num_nodes=2, gpus_per_node=6))

    plan = plan_batch(PlanRequest(batch=batch_of(*BUCKETS), costs=on_two_nodes, iterations=50))

    assert len(asked) == 1
    assert plan.planner == "arachne"


def test_user_errors_pass_through():
    request = PlanRequest(batch=batch_of("96x64x1"), costs=costs_of(2), planner="static_pd")
    with pytest.raises(ConfigError, match="did you mean 'static_"):
        plan_batch(request)
    tight = PlanRequest(batch=batch_of("224x96x81"), costs=costs_of(2, memory_bytes=1e6))
    with pytest.raises(
        InfeasibleError, match=r"clip .*needs 166 MB on each of 2 GPUs, but 1 MB may be used"
    ):
        plan_batch(tight)


def test_planning_imports_no_torch_and_no_scipy():
    code = (
        "import sys, arachne.trainer.planning, arachne.cost.calibration; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'scipy', 'diffusers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_budget_chooses_the_iterations_ahead():
    def iterations(planner: PlannerSettings, num_gpus: int) -> int:
        config = RunConfig(
            run=RunSettings(dir="run", steps=1),
            data=DataSettings(path="clips", cache="cache"),
            planner=planner,
        )
        return run_request(config, batch_of(*BUCKETS), costs_of(num_gpus)).problem.iterations

    assert iterations(PlannerSettings(iterations=77), 6) == 77
    # Degrees nest in two ways on 4 GPUs, 1-2-4 and 1-3-4; on 2 in one.
    for num_gpus, num_ladders in ((4, 2), (2, 1)):
        assert iterations(PlannerSettings(iterations=77, budget_s=0.5), num_gpus) == (
            iterations_within(0.5, num_gpus, len(BUCKETS), num_ladders=num_ladders)
        )
    assert iterations(PlannerSettings(budget_s=0.001), 4) == 0  # the warm start alone


@st.composite
def requests_on_odd_nodes(draw):
    """Runs on nodes of any size, with GPUs of uneven speed here and there."""
    per_node, num_nodes = draw(st.sampled_from([4, 6, 7, 8])), draw(st.integers(2, 3))
    num_gpus = per_node * num_nodes
    speeds = draw(st.sampled_from([(), tuple(0.5 if i % 5 == 2 else 1.0 for i in range(num_gpus))]))
    costs = costs_of(num_gpus, memory_bytes=64e9)
    cluster = replace(
        costs.cluster,
        num_nodes=num_nodes,
        gpus_per_node=per_node,
        nics_per_node=draw(st.sampled_from([0, 1, 2])),
        speeds=speeds,
    )
    batch = batch_of(*draw(st.lists(st.sampled_from(BUCKETS), min_size=1, max_size=6)))
    if draw(st.booleans()):
        batch = encoded(batch, ("vae",))
    return PlanRequest(
        batch=batch,
        costs=replace(costs, cluster=cluster),
        max_degree=draw(st.sampled_from([0, 4])),
        iterations=30,
    )


@given(request=requests_on_odd_nodes())
@settings(max_examples=60, deadline=None)
def test_placed_plans_keep_to_groups_that_a_runtime_has_and_no_baseline_is_shorter(request):
    of_degree = plan_blocks(request.problem.num_gpus, request.problem.degrees)
    groups = {block for blocks in of_degree.values() for block in blocks}

    placed = {
        name: placed_plan(planner(request.problem), request) for name, planner in PLANNERS.items()
    }
    placed["arachne"] = plan_batch(request)

    for plan in placed.values():
        assert {launch.ranks for launch in plan.launches if launch.degree > 1} <= groups
    seconds = {name: simulate(plan, request.costs).makespan_s for name, plan in placed.items()}
    assert seconds["arachne"] <= min(seconds.values()) * (1.0 + 1e-9)


def test_a_baseline_that_placing_takes_off_the_network_is_compared_as_placed():
    """Of threes on nodes of four, one crosses as planned; placed, it lies in the second node."""
    a100 = load_cluster("a100-80gx8")
    cluster = replace(
        a100,
        num_nodes=2,
        gpus_per_node=4,
        nics_per_node=4,
        device=replace(a100.device, launch_s=0.03, memory_bytes=1e12),
        intra_node=replace(a100.intra_node, latency_s=2e-5, bandwidth_bytes_per_s=360e9),
        inter_node=replace(a100.inter_node, latency_s=1e-3, bandwidth_bytes_per_s=40e9),
    )
    costs = CostModel(
        model=family_named("cogvideox").presets["cogvideox-5b"],
        cluster=cluster,
        element_bytes=2,
        options=CostOptions(recompute="auto", needs_heads=True),
    )
    batch = batch_of(*["480x720x81"] * 4)
    following = replace(batch, step=1)
    request = PlanRequest(
        batch=batch,
        next_batch=encoded(following, ("vae",), ("text", "vae"), ("vae",), ("vae",)),
        costs=costs,
        max_degree=3,
        stack_tokens=0,
        iterations=300,
    )
    seconds = {
        name: simulate(plan_batch(replace(request, planner=name)), costs).makespan_s
        for name in ("arachne", "static_sp")
    }
    assert seconds["arachne"] <= seconds["static_sp"] * (1.0 + 1e-9)


def test_where_nodes_share_a_nic_the_shortest_is_that_which_sends_least_at_once():
    model = replace(
        family_named("hunyuan_video").presets["hunyuanvideo-13b"],
        num_layers=3,
        num_single_layers=1,
        num_heads=6,
        ffn_size=12288,
    )
    cpu = load_cluster("cpux1")
    cluster = replace(
        cpu,
        num_nodes=4,
        gpus_per_node=8,
        nics_per_node=1,
        device=replace(cpu.device, launch_s=0.2),
        inter_node=replace(cpu.inter_node, latency_s=4e-5, bandwidth_bytes_per_s=4e9),
    )
    costs = CostModel(
        model=model,
        cluster=cluster,
        element_bytes=4,
        state=TrainingState(gradients="bfloat16"),
        options=CostOptions(recompute="auto", ring="none", needs_heads=True),
    )
    shapes = [
        *("480x320x81", "128x128x1", "480x320x81", "640x384x33"),
        *("128x128x1", "640x384x33", "640x384x33"),
    ]
    num_tokens = family_named("hunyuan_video").geometry.num_tokens
    buckets = map(Bucket.parse, shapes)
    clips = tuple(
        BatchClip(name=str(slot), bucket=bucket, num_tokens=num_tokens(bucket))
        for slot, bucket in enumerate(buckets)
    )
    batch = Batch(step=0, clips=clips)

    def simulated_s(planner: str) -> float:
        request = PlanRequest(
            batch=batch, costs=costs, planner=planner, stack_tokens=0, seed=7, iterations=400
        )
        return simulate(plan_batch(request), costs).makespan_s

    assert simulated_s("arachne") <= simulated_s("static_degree_longest_first")


@pytest.mark.parametrize("attention", ["auto", "cudnn", "flash", "math"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("family", ["wan", "hunyuan_video", "hunyuan_video15", "mochi", "ltx"])
def test_on_gpus_rings_are_planned_where_the_run_s_kernel_computes_them(family, dtype, attention):
    model = ModelSettings(family=family, dtype=dtype, attention=attention)
    config = RunConfig(
        run=RunSettings(dir="run", steps=1),
        data=DataSettings(path="clips", cache="cache", frame_buckets=(1,)),
        model=model,
    )
    shape = next(iter(family_named(family).presets.values()))
    query = OnGpu(DTYPES[dtype], shape.head_size)
    try:
        kernel_named(attention, query, is_masked=family_named(family).masks_keys)
        can_ring = True
    except ConfigError:
        can_ring = False
    costs = run_costs(config, shape, load_cluster("h100x64"), on_gpus=True)
    assert costs.options.has_rings == can_ring
    assert run_costs(config, shape, load_cluster("cpux4"), on_gpus=False).options.has_rings
    request = run_request(config, batch_of(*BUCKETS), costs)
    assert (request.max_degree > shape.num_heads) == can_ring
