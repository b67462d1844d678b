"""Systems that draw their batches from buckets, over an epoch."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arachne.core.batch import Batch
from arachne.core.errors import InfeasibleError
from arachne.core.plan_rules import check_placed_plan
from arachne.mapper.placement import place
from arachne.planner.epochs import adaptive_load, open_sora, video_sys
from arachne.planner.epochs.adaptive_load import compute_exponent
from arachne.planner.epochs.bucket_batches import most_clips_that_fit, share_of_a_group
from arachne.planner.epochs.epoch import (
    Epoch,
    EpochProblem,
    gpu_seconds_per_token,
    sampled_epoch,
    stack_of,
)
from arachne.planner.memory_cap import num_cap_violations
from arachne.planner.problem import PlanningProblem
from arachne.planner.registry import EPOCH_PEERS, PEERS, PLANNERS
from arachne.planner.static_dp import plan_static_dp
from arachne.simulator.simulate import simulate
from tests.planner.problems import BUCKETS, TableCosts, batch_of, cluster_of, costs_of

SHORT, MIDDLE, LONG = "16x16x1", "160x160x1", "160x160x9"
"""1, 100 and 300 tokens."""


def epoch_of(
    buckets: list[str],
    num_gpus: int,
    *,
    per_step: int = 8,
    costs=None,
    degrees: tuple[int, ...] = (1, 2, 4),
    seed: int = 0,
    step_end_s: float = 0.0,
) -> EpochProblem:
    """An epoch of clips with these shapes; every clip has a name of its own."""
    clips = batch_of(*buckets).clips
    return EpochProblem(
        sampled=tuple(
            PlanningProblem(
                batch=Batch(step=index, clips=clips[first : first + per_step]),
                num_gpus=num_gpus,
                degrees=tuple(degree for degree in degrees if degree <= num_gpus),
                costs=costs or TableCosts(),
                seed=seed,
            )
            for index, first in enumerate(range(0, len(clips), per_step))
        ),
        step_end_s=step_end_s,
    )


def trained(epoch: Epoch) -> Counter[str]:
    return Counter(clip.name for step in epoch.steps for clip in step.problem.batch.clips)


@pytest.mark.parametrize("name", EPOCH_PEERS)
@given(
    buckets=st.lists(st.sampled_from(BUCKETS), min_size=1, max_size=60),
    num_gpus=st.sampled_from([1, 6, 7, 8]),
    memory_bytes=st.sampled_from([4e8, 8e9]),
    seed=st.integers(0, 3),
)
@settings(max_examples=15, deadline=None)
def test_every_step_is_a_valid_plan_and_no_clip_is_trained_twice(
    name: str, buckets: list[str], num_gpus: int, memory_bytes: float, seed: int
):
    problem = epoch_of(
        buckets, num_gpus, costs=costs_of(num_gpus, memory_bytes), degrees=(1, 2, 3, 4), seed=seed
    )

    epoch = EPOCH_PEERS[name](problem)

    assert epoch.planner == name
    assert set(trained(epoch)) <= {clip.name for clip in problem.clips}
    assert all(count == 1 for count in trained(epoch).values())
    assert epoch.num_clips == sum(trained(epoch).values())
    for index, step in enumerate(epoch.steps):
        placed = place(step.plan, cluster_of(num_gpus), index)
        check_placed_plan(placed, step.problem.batch, num_gpus)
        assert num_cap_violations(step.plan, step.problem, is_packed=False) == 0
        assert {launch.phase for launch in step.plan.launches} == {0}
        assert simulate(placed).iteration_s == step.plan.makespan_s
    assert EPOCH_PEERS[name](problem) == epoch


@pytest.mark.parametrize("name", EPOCH_PEERS)
def test_only_what_fills_no_batch_or_no_round_is_dropped(name: str):
    """8 GPUs, 40 clips that fit one by one on one GPU each: five full rounds."""
    costs = TableCosts(max_tokens_per_gpu=100)
    problem = epoch_of([MIDDLE] * 43, 8, per_step=8, costs=costs, degrees=(1,))

    epoch = EPOCH_PEERS[name](problem)

    assert epoch.num_clips == 40
    assert epoch.num_tokens == 4000


@pytest.mark.parametrize("name", EPOCH_PEERS)
def test_steps_hold_about_as_many_tokens_as_the_samplers(name: str):
    rng = Random(1)
    buckets = rng.choices([SHORT, MIDDLE, LONG], weights=[1, 2, 1], k=400)
    costs = TableCosts(max_tokens_per_gpu=300)
    for per_step in (8, 40):
        problem = epoch_of(buckets, 4, per_step=per_step, costs=costs, step_end_s=50.0)
        steps = EPOCH_PEERS[name](problem).steps
        mean_tokens = sum(step.num_tokens for step in steps) / len(steps)
        assert 0.5 < mean_tokens / problem.tokens_per_step < 1.6


@pytest.mark.parametrize("name", EPOCH_PEERS)
def test_another_seed_draws_in_another_order(name: str):
    buckets = [SHORT, MIDDLE, LONG] * 30
    costs = TableCosts(max_tokens_per_gpu=300)
    orders = [
        list(trained(EPOCH_PEERS[name](epoch_of(buckets, 4, costs=costs, seed=seed))))
        for seed in (0, 1)
    ]
    assert orders[0] != orders[1]


@pytest.mark.parametrize("name", EPOCH_PEERS)
def test_an_epoch_too_short_for_a_step_trains_nothing(name: str):
    problem = epoch_of([MIDDLE] * 3, 4, costs=TableCosts(max_tokens_per_gpu=100), degrees=(1,))

    epoch = EPOCH_PEERS[name](problem)

    assert (epoch.steps, epoch.num_clips) == ((), 0)
    assert gpu_seconds_per_token(epoch, problem) == float("inf")


@pytest.mark.parametrize("name", EPOCH_PEERS)
def test_a_clip_that_fits_nowhere_is_named(name: str):
    problem = epoch_of([MIDDLE, LONG], 2, costs=TableCosts(max_tokens_per_gpu=120))
    with pytest.raises(InfeasibleError, match=r"clip '1.mp4' of 160x160x9, 300 tokens, needs"):
        EPOCH_PEERS[name](problem)


def test_open_soras_batches_fill_the_memory_of_one_degree():
    costs = TableCosts(max_tokens_per_gpu=350)
    problem = epoch_of([MIDDLE] * 60 + [LONG] * 20, 4, costs=costs, degrees=(1, 2), per_step=40)

    epoch = open_sora.opensora_epoch(problem)

    launches = [launch for step in epoch.steps for launch in step.plan.launches]
    (degree,) = {launch.degree for launch in launches}
    sizes = {(launch.cascade.num_tokens, launch.cascade.num_clips) for launch in launches}
    assert sizes == {(100, 350 * degree // 100), (300, 350 * degree // 300)}


@pytest.mark.parametrize(
    ("max_tokens_per_gpu", "degree"),
    [
        (6400, 1),  # one group's share of a step fits on either; ties go to the smaller
        (150, 2),  # one clip on one GPU, 130 GPU-seconds each; three on two, 120 each
        (50, 2),  # nothing fits on one GPU
    ],
)
def test_open_sora_takes_the_degree_that_costs_least(max_tokens_per_gpu: int, degree: int):
    costs = TableCosts(launch_s_each=30.0, max_tokens_per_gpu=max_tokens_per_gpu)
    problem = epoch_of([MIDDLE] * 64, 4, costs=costs, degrees=(1, 2), per_step=32)

    steps = open_sora.opensora_epoch(problem).steps

    assert {launch.degree for step in steps for launch in step.plan.launches} == {degree}


class QuadraticCosts(TableCosts):
    """Clips of s tokens cost 1e-3·s² seconds."""

    def launch_s(self, cascade, gpus):
        return 1e-3 * cascade.num_clips * cascade.num_tokens**2 / len(gpus)


@pytest.mark.parametrize("name", EPOCH_PEERS)
def test_a_batch_is_no_larger_than_its_groups_share_of_a_step(name: str):
    """Ten middle clips a step are 1,000 tokens, 250 for each of four GPUs."""
    costs = TableCosts(launch_s_each=1.0)
    problem = epoch_of([MIDDLE] * 80, 4, costs=costs, degrees=(1,), per_step=10)

    launches = [x for step in EPOCH_PEERS[name](problem).steps for x in step.plan.launches]

    assert {launch.cascade.num_clips for launch in launches} == {2}


def test_a_bucket_with_fewer_clips_than_fit_still_fills_a_batch():
    """Forty short clips would fit in one batch, but there are three."""
    problem = epoch_of([SHORT] * 3, 1, costs=TableCosts(max_tokens_per_gpu=40), per_step=1)
    stretched = replace(
        problem, sampled=(*problem.sampled, *epoch_of([LONG] * 9, 1, degrees=(1,)).sampled)
    )
    clips = problem.clips

    assert share_of_a_group(problem, clips, 1) == 1
    assert share_of_a_group(stretched, clips, 1) == 3


def test_the_exponent_of_adaptive_load_is_fitted_to_single_clips():
    clips = list(batch_of(SHORT, MIDDLE, LONG).clips)
    linear, quadratic = epoch_of([SHORT], 2), epoch_of([SHORT], 2, costs=QuadraticCosts())
    flat = epoch_of([SHORT], 2, costs=TableCosts(launch_s_each=1e6))
    assert compute_exponent(linear, clips, 2) == pytest.approx(1.0)
    assert compute_exponent(quadratic, clips, 2) == pytest.approx(2.0)
    assert compute_exponent(flat, clips, 2) == 1.0
    assert compute_exponent(quadratic, clips[:1], 2) == 1.0


def test_adaptive_loads_batches_take_about_as_long_as_the_longest_clips():
    """Memory alone would let 30 of the middle clips stand beside 10 of the long ones."""
    costs = QuadraticCosts(max_tokens_per_gpu=3000)
    problem = epoch_of([MIDDLE] * 180 + [LONG] * 40, 4, costs=costs, degrees=(1,), per_step=110)

    launches = [
        launch
        for step in adaptive_load.adaptiveload_epoch(problem).steps
        for launch in step.plan.launches
    ]
    by_tokens = {launch.cascade.num_tokens: launch.cascade.num_clips for launch in launches}
    assert by_tokens[100] == 9 * by_tokens[300]
    assert {round(launch.duration_s) for launch in launches} == {90 * by_tokens[300]}


def test_adaptive_loads_batches_keep_the_memory_cap_too():
    """Nine middle clips would take as long as one long one, but three fill the memory."""
    costs = QuadraticCosts(max_tokens_per_gpu=350)
    problem = epoch_of([MIDDLE] * 60 + [LONG] * 20, 4, costs=costs, degrees=(1,))

    steps = adaptive_load.adaptiveload_epoch(problem).steps

    sizes = {
        (launch.cascade.num_tokens, launch.cascade.num_clips)
        for step in steps
        for launch in step.plan.launches
    }
    assert sizes == {(100, 3), (300, 1)}


def test_videosys_draws_the_bucket_with_more_waiting_batches_more_often():
    buckets = [MIDDLE] * 90 + ["320x80x1"] * 10  # of as many tokens
    costs = TableCosts(max_tokens_per_gpu=100)
    firsts = Counter[str]()
    for seed in range(80):
        problem = epoch_of(buckets, 1, costs=costs, degrees=(1,), per_step=1, seed=seed)
        first = video_sys.videosys_epoch(problem).steps[0]
        firsts[str(first.problem.batch.clips[0].bucket)] += 1
    assert firsts[MIDDLE] > 60


def test_videosys_profiles_the_cheapest_degree_and_batch_of_each_bucket():
    """Wide groups lose 1 s a launch; long clips fit on two GPUs only; 256 short ones share one."""
    costs = TableCosts(launch_s_each=1.0, max_tokens_per_gpu=256)
    problem = epoch_of([SHORT] * 1200 + [LONG] * 30, 4, per_step=300, costs=costs, degrees=(1, 2))

    steps = video_sys.videosys_epoch(problem).steps

    shapes = {
        (launch.cascade.num_tokens, launch.cascade.num_clips, launch.degree)
        for step in steps
        for launch in step.plan.launches
    }
    assert shapes == {(1, 256, 1), (300, 1, 2)}


def test_videosys_groups_accumulate_until_they_end_with_the_longest():
    costs = TableCosts(max_tokens_per_gpu=300)
    problem = epoch_of([MIDDLE] * 400 + [LONG] * 60, 4, costs=costs, degrees=(1,), per_step=12)

    steps = video_sys.videosys_epoch(problem).steps

    assert len(steps) > 3
    for step in steps[:-2]:  # near the end too few batches are left
        busy_s = Counter[int]()
        for launch in step.plan.launches:
            busy_s[launch.gpus[0]] += launch.duration_s
        assert len(busy_s) == 4
        assert max(busy_s.values()) == min(busy_s.values())


def test_the_samplers_steps_drop_nothing():
    problem = epoch_of([SHORT, MIDDLE, LONG] * 7, 4)

    epoch = sampled_epoch(problem, "static_dp", plan_static_dp)

    assert len(trained(epoch)) == epoch.num_clips == 21
    assert [step.problem for step in epoch.steps] == list(problem.sampled)


def test_gpu_seconds_per_token_count_the_ends_of_steps():
    problem = epoch_of([MIDDLE] * 8, 2, per_step=4, step_end_s=10.0)

    epoch = sampled_epoch(problem, "static_dp", plan_static_dp)

    # Two steps of 200 s on each of two GPUs, and 10 s more each, for 800 tokens.
    assert gpu_seconds_per_token(epoch, problem) == pytest.approx(2 * 2 * 210.0 / 800)


@given(limit=st.integers(1, 50), most=st.integers(0, 60))
def test_the_most_clips_that_fit_are_found_by_bisection(limit: int, most: int):
    problem = epoch_of([MIDDLE], 2, costs=TableCosts(max_tokens_per_gpu=100 * most / 2))
    (clip,) = problem.clips

    assert most_clips_that_fit(problem, clip, 2, limit) == min(limit, most)
    assert stack_of(clip, 3, first=2).slots == (2, 3, 4)


def test_no_two_systems_have_one_name():
    names = [*PLANNERS, *PEERS, *EPOCH_PEERS]
    assert len(names) == len(set(names))
