"""What trees of mixed ladders and starts made of configurations find, and how long plans take."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arachne.core.batch import Batch
from arachne.core.blocks import allowed_degrees, ladders, plan_blocks
from arachne.core.cascade import Cascade, Encoder
from arachne.core.errors import InfeasibleError
from arachne.core.plan import Plan
from arachne.core.plan_rules import check_placed_plan
from arachne.mapper.placement import place
from arachne.planner.assignment import Assignment, TreeCosts
from arachne.planner.block_tree import block_tree
from arachne.planner.budget import iterations_within
from arachne.planner.configuration_start import ConfigurationStarts
from arachne.planner.lower_bound import lower_bound_s
from arachne.planner.problem import PlanningProblem
from arachne.planner.registry import PEERS
from arachne.planner.tree import plan_arachne
from arachne.planner.trees import Trees
from arachne.planner.variants import Variants
from arachne.planner.warm_start import from_plan
from tests.planner.dag_problems import encoded
from tests.planner.problems import (
    BUCKETS,
    TableCosts,
    batch_of,
    batches,
    cluster_of,
    problem_of,
    stack_limits,
)


class TastefulCosts(TableCosts):
    """Long clips run well on six GPUs and their divisors, the others on powers of two."""

    def launch_s(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        likes_threes = cascade.num_tokens > 1000
        is_liked = len(gpus) in ((1, 3, 6) if likes_threes else (1, 2, 4, 8))
        return (1.0 if is_liked else 1.5) * super().launch_s(cascade, gpus)


def test_sixes_run_beside_a_four_where_no_ladder_has_both():
    # 1,764 tokens on 6 GPUs take 294 s; 756 on 4 take 189 s, on 2 or on 3 of them 378 s.
    problem = PlanningProblem(
        batch=batch_of("224x96x81", "224x96x81", "224x96x33"),
        num_gpus=16,
        degrees=(1, 2, 3, 4, 6, 8),
        costs=TastefulCosts(),
        iterations=2000,
    )

    plan = plan_arachne(problem)

    assert plan.makespan_s == pytest.approx(294.0)
    assert sorted(launch.degree for launch in plan.launches) == [4, 6, 6]
    for ladder in ladders(16, problem.degrees):
        costs = TreeCosts(Variants(problem), block_tree(16, ladder))
        assert from_plan(costs, plan) is None


def test_starts_come_from_all_ladders_at_once_and_from_each_alone(monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []
    kept = ConfigurationStarts.within

    def within(
        starts: ConfigurationStarts, limit_s: float, of: Sequence[tuple[int, ...]]
    ) -> Assignment | None:
        asked.append(len(of))
        return kept(starts, limit_s, of)

    monkeypatch.setattr(ConfigurationStarts, "within", within)
    problem = PlanningProblem(
        batch=batch_of("224x96x81", "224x96x81", "224x96x33"),
        num_gpus=16,
        degrees=(1, 2, 3, 4, 6),
        costs=TastefulCosts(),
        iterations=1200,
    )

    plan_arachne(problem)

    assert asked == [3, 1, 1]  # (1, 2, 4), (1, 2, 6) and (1, 3, 6) for three rounds


def test_only_ladders_together_have_room_for_sixes_beside_a_four():
    problem = PlanningProblem(
        batch=batch_of("224x96x81", "224x96x81", "224x96x33"),
        num_gpus=16,
        degrees=(1, 2, 3, 4, 6, 8),
        costs=TastefulCosts(),
    )
    variants = Variants(problem)
    trees = Trees(variants)
    starts = ConfigurationStarts(variants, trees)

    assert starts.within(295.0, trees.ladders) is not None
    assert all(starts.within(295.0, [ladder]) is None for ladder in trees.ladders)


@given(
    batch=batches,
    num_gpus=st.sampled_from([2, 6, 7, 8, 12, 16, 20, 24]),
    stack=stack_limits,
    part=st.floats(1.0, 2.0),
)
@settings(max_examples=30, deadline=None)
def test_starts_made_of_configurations_hold_all_clips_on_blocks_that_do_not_cross(
    batch: Batch, num_gpus: int, stack: int, part: float
):
    problem = problem_of(batch, num_gpus, stack_tokens=stack)
    variants = Variants(problem)
    trees = Trees(variants)
    limit_s = part * lower_bound_s(problem, variants)

    start = ConfigurationStarts(variants, trees).within(limit_s, trees.ladders)

    if start is None:
        return
    for shape, slots in enumerate(variants.slots_of_shape):
        assert sum(of_node[shape] for of_node in start.counts) == len(slots)
    allowed = {b for of in plan_blocks(num_gpus, problem.degrees).values() for b in of}
    used = [set(gpus) for _, gpus in start.placements()]
    assert all(gpus in allowed for _, gpus in start.placements())
    for one in used:
        assert all(one <= other or other <= one or not one & other for other in used)


class NodeCosts(TableCosts):
    """Slower where a block is in more than one node of eight."""

    def launch_s(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        slowdown = 1.0 if gpus[0] // 8 == gpus[-1] // 8 else 1.1
        return slowdown * super().launch_s(cascade, gpus)


def test_fast_blocks_that_cross_a_larger_one_are_not_taken():
    # Twelves lie on GPUs 0 to 11 and 12 to 23; six in one node, 8 to 13, would cross both.
    problem = PlanningProblem(
        batch=batch_of(*["224x96x81"] * 2, *["224x96x33"] * 4),
        num_gpus=24,
        degrees=(2, 6, 12),
        costs=NodeCosts(max_tokens_per_gpu=150.0),
    )
    variants = Variants(problem)
    trees = Trees(variants)

    start = ConfigurationStarts(variants, trees).within(320.0, trees.ladders)

    assert start is not None
    assert {gpus[0] for _, gpus in start.placements() if len(gpus) == 12} == {0, 12}
    assert {gpus[0] for _, gpus in start.placements() if len(gpus) == 6} == {0, 6, 16}


def test_no_configurations_hold_all_clips_in_too_short_a_time():
    problem = problem_of(batch_of(*BUCKETS * 6), 4)
    variants = Variants(problem)
    trees = Trees(variants)
    starts = ConfigurationStarts(variants, trees)
    bound_s = lower_bound_s(problem, variants)

    assert starts.within(0.9 * bound_s, trees.ladders) is None
    assert starts.within(1.2 * bound_s, trees.ladders) is not None


def test_what_fits_on_no_block_of_a_tree_is_not_left_out():
    # 1,764 tokens fit on six GPUs only; the tree has blocks of four.
    problem = PlanningProblem(
        batch=batch_of("224x96x81", "96x64x33"),
        num_gpus=8,
        degrees=(1, 2, 4, 6),
        costs=TableCosts(max_tokens_per_gpu=300),
    )
    variants = Variants(problem)
    made = Assignment(TreeCosts(variants, block_tree(8, (1, 2, 4))))

    assert not made.can_add(0, 1, 1)
    assert made.can_add(1, 1, 1)
    assert not made.fill([1, 1], 1000.0)
    assert made.fill([0, 1], 1000.0)
    assert plan_arachne(problem).makespan_s == pytest.approx(294.0)


WORLDS = (6, 7, 12, 20, 24)
BATCHES = {
    "one clip": ("160x96x33",),
    "one clip that only large blocks hold": ("224x96x81",),
    "fewer clips than GPUs": ("96x64x33", "160x96x17", "224x96x33"),
    "equal clips": ("160x96x17",) * 25,
    "one giant and small ones": ("224x96x81", *("96x64x1",) * 9),
}


@pytest.mark.parametrize("num_gpus", WORLDS)
@pytest.mark.parametrize("what", BATCHES)
def test_worlds_of_any_size_plan_any_batch(num_gpus: int, what: str):
    batch = batch_of(*BATCHES[what])
    problem = problem_of(batch, num_gpus, iterations=900, memory_bytes=1.2e8)
    try:
        plan = plan_arachne(problem)
    except InfeasibleError as error:
        message = str(error)
    else:
        check_fits(plan, problem)
        return
    assert "needs" in message
    assert "\n" not in message
    with pytest.raises(InfeasibleError):
        lower_bound_s(problem)


def check_fits(plan: Plan, problem: PlanningProblem) -> None:
    num_gpus = problem.num_gpus
    check_placed_plan(place(plan, cluster_of(num_gpus), 0), problem.batch, num_gpus)
    allowed = {b for of in plan_blocks(num_gpus, problem.degrees).values() for b in of}
    assert all(launch.gpus in allowed for launch in plan.launches)
    assert all(problem.costs.fits(launch.cascade, launch.gpus) for launch in plan.launches)
    assert plan.makespan_s >= lower_bound_s(problem)


@pytest.mark.parametrize("num_gpus", WORLDS)
def test_no_peer_that_keeps_the_cap_is_shorter(num_gpus: int):
    batch = batch_of(*BUCKETS, *BUCKETS, "224x96x81")
    problem = problem_of(batch, num_gpus, iterations=900)
    makespan_s = plan_arachne(problem).makespan_s

    for name in ("lb_mini", "static_lockstep_zero1", "megatron_dynamic_cp", "hotspa"):
        assert makespan_s <= PEERS[name](problem).makespan_s


def test_more_time_means_more_iterations_and_none_means_none():
    assert iterations_within(0.0, 8, 16) == 0
    assert 0 < iterations_within(0.5, 64, 256) < iterations_within(1.0, 64, 256)
    # 5 − 0.01 − 4,096 · 3e-4 · 2 − 1,024 · (5e-5 + 2e-4) s are left for steps of
    # (8e-5 + 4 · 3e-5) · 1.5.
    assert iterations_within(5.0, 1024, 4096) == int(2.2764 / 3e-4)
    assert iterations_within(1.0, 64, 256, num_ladders=5) < iterations_within(1.0, 64, 256)
    assert iterations_within(1.0, 64, 256, has_encoders=True) < iterations_within(1.0, 64, 256)


def test_what_planning_takes_in_any_case_leaves_less_time_for_iterations():
    # Measured without iterations: on 1,024 GPUs with 2,048 clips and 10 ladders, on 256 with 512
    # clips and 8, and on 8 with 16 clips and 3.
    for num_gpus, num_clips, num_ladders, fixed_s in (
        (1024, 2048, 10, 1.62),
        (256, 512, 8, 0.33),
        (8, 16, 3, 0.012),
    ):
        assert iterations_within(0.7 * fixed_s, num_gpus, num_clips, num_ladders=num_ladders) == 0
        assert iterations_within(1.4 * fixed_s, num_gpus, num_clips, num_ladders=num_ladders) > 0


def test_starts_that_only_longer_searches_make_are_paid_before_more_steps():
    def iterations(budget_s: float) -> int:
        return iterations_within(budget_s, 64, 128, num_ladders=6)

    assert [iterations(budget_s) for budget_s in (0.16, 0.17, 0.2, 0.23)] == [389, 399, 399, 399]
    assert iterations(0.3) > 500


@pytest.mark.parametrize(("num_gpus", "encoder"), [(4, ()), (8, ()), (8, ("vae",))])
def test_a_budget_of_some_times_the_start_makes_no_more_calls_than_that(
    num_gpus: int, encoder: tuple[Encoder, ...]
):
    batch = encoded(batch_of(*Random(1).choices(BUCKETS, k=4 * num_gpus)), encoder)
    problem = problem_of(batch, num_gpus, iterations=0, memory_bytes=64e9)

    num_clips = len(batch.clips)
    num_ladders = len(ladders(num_gpus, problem.degrees))
    start_s = 0.01 + 3e-4 * num_clips * (1.0 + num_gpus / 1024) + 5e-5 * num_gpus * num_ladders
    start_s *= 2.5 if encoder else 1.0
    num_calls(problem)  # fills caches of what does not change
    of_start = num_calls(problem)

    for times in (1, 2, 10):
        iterations = iterations_within(
            times * start_s,
            num_gpus,
            num_clips,
            num_ladders=num_ladders,
            has_encoders=problem.has_encoders,
        )
        found = num_calls(replace(problem, iterations=iterations))
        assert found <= 1.01 * times * of_start  # a few calls depend on what ran before


def num_calls(problem: PlanningProblem) -> int:
    """Calls of Python functions that a plan takes: time, but the same on every machine."""
    found = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal found
        found += event == "call"

    sys.setprofile(count)
    try:
        plan_arachne(problem)
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("num_gpus", [8, 64])
def test_a_budget_gives_iterations_that_take_about_as_long(num_gpus: int):
    degrees = allowed_degrees(num_gpus, 8)
    batch = batch_of(*[BUCKETS[(3 * i + i // 5) % len(BUCKETS)] for i in range(4 * num_gpus)])
    problem = PlanningProblem(
        batch=batch,
        num_gpus=num_gpus,
        degrees=tuple(degree for degree in degrees if degree & (degree - 1) == 0),
        costs=TableCosts(launch_s_each=30.0),
        stack_tokens=1024,
        iterations=iterations_within(0.4, num_gpus, len(batch.clips)),
    )
    started_s = process_time()
    plan_arachne(problem)

    assert process_time() - started_s < 4 * 0.4  # four times, for slow machines
