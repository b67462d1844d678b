"""Runs in which a rank runs out of memory: the step is skipped, or the run ends and says what to
plan with; both are known to the planner from then on, also after the run was resumed."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from arachne.core.cascade import Cascade
from arachne.core.errors import DataError, InfeasibleError, RankMemoryError
from arachne.core.launch_mode import WHOLE
from arachne.core.placed_plan import PlacedPlan
from arachne.core.strict_json import from_json
from arachne.core.units import bytes_text
from arachne.cost.cluster_files import load_cluster
from arachne.cost.launch_modes import CostOptions
from arachne.cost.memory import MemoryUse, raised_reserve
from arachne.cost.model import CostModel
from arachne.runtime.launcher import run_ranks
from arachne.runtime.out_of_memory import is_out_of_memory
from arachne.runtime.progress import Unwatched
from arachne.runtime.world import World
from arachne.trainer import cluster_choice, loop, measure, memory_reports, step, validation
from arachne.trainer.config import RunConfig
from arachne.trainer.loop import train
from arachne.trainer.memory_reports import (
    MEMORY_REPORTS,
    MemoryReport,
    RaisedReserves,
    memory_report,
    still_fits,
    told_if_full,
)
from arachne.trainer.planning import PlanRequest, plan_batch
from tests.cost.test_model import COSTS
from tests.forbidden_files import forbidden
from tests.planner.problems import batch_of
from tests.trainer.test_exact_resume import at_the_end
from tests.trainer.tiny_runs import (
    NUM_CLIPS,
    changed,
    tiny_config,
    tiny_session,
    with_manifest,
)

CULPRIT = 1
FULL_STEP = 2
PATIENCE_S = 300.0


def test_a_report_that_may_not_be_read_is_named_with_what_helps(tmp_path):
    path = tmp_path / "out-of-memory-1-launch-0.json"
    path.write_text("{}")
    refused = (
        rf"report '{path}' cannot be read: Permission denied; let this user read and write it, or "
        "delete it, and plans count on what the model predicts"
    )
    with forbidden(path), pytest.raises(DataError, match=refused):
        memory_reports._read(path)  # pyright: ignore[reportPrivateUsage]


class FullIn(Unwatched):
    """Memory is full in one step, when this rank has issued so many collectives in it."""

    def __init__(self, num_issued: int) -> None:
        self._num_issued = num_issued
        self._left = -1

    def begin_step(self, step: int, launch_texts: Any) -> None:
        self._left = self._num_issued if step == FULL_STEP else -1

    def issued(self, operation: str, ranks: tuple[int, ...]) -> None:
        self._left -= 1
        if self._left == 0:
            raise torch.OutOfMemoryError("planted")


def run_until_full(world: World, config: RunConfig, num_issued: int | None, resume: bool) -> Any:
    """Train; memory of rank 1 is full at one collective of step 1, or before its forward there."""
    with tiny_session(world, config) as (session, heard):
        known = session.raised_reserves.pairs
        kept, is_full = step.slot_losses, False

        def losses(*args: Any) -> Any:
            nonlocal is_full
            if world.rank == CULPRIT and len(heard.reports) == FULL_STEP and not is_full:
                is_full = True
                raise torch.OutOfMemoryError("planted")
            return kept(*args)

        if num_issued is not None and world.rank == CULPRIT:
            session.recorder.progress = FullIn(num_issued)
        elif not resume and num_issued is None:
            step.slot_losses = losses
        train(session, heard.listener, resume=resume)
        requested = session.plan_request(0, session.costs(_cluster(session)).cluster)
        return heard, known, requested.costs.state.raised_reserves


def run_full_between_steps(world: World, config: RunConfig) -> None:
    """Memory of rank 1 is full when the first step is over."""
    with tiny_session(world, config) as (session, heard):

        def full(*_: object) -> None:
            raise torch.OutOfMemoryError("planted")

        if world.rank == CULPRIT:
            loop.measured_launches = full
        train(session, heard.listener, resume=False)


def test_running_out_between_two_steps_is_one_line(config):
    words = "^between two steps: rank 1 is out of memory; set optimizer.gradients"
    with pytest.raises(RankMemoryError, match=words):
        run_ranks(2, run_full_between_steps, (config,), timeout_s=PATIENCE_S)


def _cluster(session: Any) -> Any:
    return load_cluster(f"cpux{session.world.size}")


@pytest.fixture
def config(clips, tmp_path) -> RunConfig:
    """Every launch is on all ranks; a checkpoint after each step."""
    run = tiny_config(clips, tmp_path / "run", steps=4)
    run = changed(changed(run, "planner", name="static_sp"), "checkpoint", every=1)
    return with_manifest(run)


def reports_in(config: RunConfig) -> list[MemoryReport]:
    paths = sorted(Path(config.run.dir).glob(MEMORY_REPORTS))
    return [from_json(path.read_bytes(), MemoryReport, what=path.name) for path in paths]


@pytest.mark.distributed
def test_without_memory_before_the_first_collective_all_ranks_skip_the_step_and_plan_with_more(
    config,
):
    by_rank = run_ranks(2, run_until_full, (config, None, False))
    (report,) = reports_in(config)
    for heard, known, requested in by_rank:
        bad = heard.reports[FULL_STEP]
        assert [each.outcome.is_updated for each in heard.reports] == [True, True, False, True]
        assert bad.outcome.given_up == (report.launch,)
        assert known == ()
        assert requested == ((report.num_tokens, report.reserve_share),)
    assert report.rank is None
    said = "\n".join(by_rank[0][0].said)
    clip = report.clips[0]
    assert f"step 3: out of memory (clips {clip!r} ({report.bucket}, noise level 0." in said
    assert "ranks 0, 1)" in said
    assert f"from now on with {bytes_text(report.raised_bytes)}; {config.run.dir}/out-of" in said
    assert report.raised_bytes > report.expected_bytes


@pytest.mark.distributed
@pytest.mark.parametrize("num_issued", [4, pytest.param(9, marks=pytest.mark.slow)])
def test_inside_a_launch_the_run_ends_with_a_report_and_is_resumed_with_a_raised_estimate(
    config, num_issued
):
    with pytest.raises(RankMemoryError) as error:
        run_ranks(2, run_until_full, (config, num_issued, False))
    (report,) = reports_in(config)
    assert (report.step, report.rank, report.ranks) == (FULL_STEP, CULPRIT, (0, 1))
    line = str(error.value)
    assert line.startswith(
        f"step 3: rank 1 is out of memory in launch {report.launch} (dit of {report.bucket}, "
        f"{report.clips[0]!r}"
    )
    assert "on ranks 0-1), planned with" in line
    assert "where the others wait; report: " in line
    assert "--resume" in line

    for heard, known, _ in run_ranks(2, run_until_full, (config, None, True)):
        assert known == ((report.num_tokens, report.reserve_share),)
        assert [each.step for each in heard.reports][-2:] == [FULL_STEP, FULL_STEP + 1]
        assert all(each.outcome.is_updated for each in heard.reports)


class FullInLaunch(Unwatched):
    """Memory is full in one step, at the third collective of launches whose text has some words."""

    def __init__(self, words: str) -> None:
        self._words = words
        self._launches: set[int] = set()
        self._launch: int | None = None
        self._left = 2

    def begin_step(self, step: int, launch_texts: Mapping[int, str]) -> None:
        if step == FULL_STEP:
            self._launches = {i for i, text in launch_texts.items() if self._words in text}

    def change(self, activity: str, launch: int | None = None, *, is_waiting: bool = False) -> None:
        self._launch = launch

    def issued(self, operation: str, ranks: tuple[int, ...]) -> None:
        self._left -= self._launch in self._launches
        if self._left < 0:
            raise torch.OutOfMemoryError("planted")


def run_where_the_longest_just_fit(
    world: World, config: RunConfig, is_full: bool, resume: bool
) -> list[PlacedPlan]:
    """The plans of a run on devices on which the longest clips just fit, nothing recomputed."""
    with tiny_session(world, config) as (session, heard):
        cluster = _cluster(session)
        costs = session.costs(cluster)
        batch = session.step_batch(0).batch
        longest = max(batch.clips, key=lambda clip: clip.num_tokens)
        cascade = Cascade(
            module="dit", slots=(0,), bucket=longest.bucket, num_tokens=longest.num_tokens
        )
        use = replace(costs, state=replace(costs.state, raised_reserves=())).memory_in(
            WHOLE, cascade, world.size
        )
        device = replace(cluster.device, memory_bytes=use.total)
        cluster_choice.load_cluster = lambda name: replace(cluster, device=device)
        if is_full:
            session.recorder.progress = FullInLaunch(f"dit of {longest.bucket}")
        train(session, heard.listener, resume=resume)
    return [report.plan for report in heard.reports]


def with_patient_planner(config: RunConfig) -> RunConfig:
    """Every launch is on all ranks, also where the planner takes its time."""
    return changed(config, "planner", name="static_sp", timeout_s=PATIENCE_S)


@pytest.mark.distributed
def test_a_resumed_run_computes_twice_what_had_no_memory_and_has_the_same_weights(clips, tmp_path):
    config = tiny_config(clips, tmp_path / "run", steps=4, batch=NUM_CLIPS)
    config = changed(with_patient_planner(config), "checkpoint", every=1)
    whole = changed(with_manifest(config), "run", dir=str(tmp_path / "whole"))
    with_manifest(whole)
    expected = run_ranks(
        2, run_where_the_longest_just_fit, (whole, False, False), timeout_s=PATIENCE_S
    )[0]
    with pytest.raises(RankMemoryError):
        run_ranks(2, run_where_the_longest_just_fit, (config, True, False), timeout_s=PATIENCE_S)
    (report,) = reports_in(config)
    plans = run_ranks(
        2, run_where_the_longest_just_fit, (config, False, True), timeout_s=PATIENCE_S
    )[0]
    assert [plan.step for plan in plans][-2:] == [FULL_STEP, FULL_STEP + 1]
    for plan, before in zip(plans, expected[-len(plans) :], strict=True):
        for launch, like in zip(plan.launches, before.launches, strict=True):
            assert launch.cascade == like.cascade
            is_raised = launch.cascade.num_tokens == report.num_tokens
            assert (launch.mode.recompute_layers, like.mode.recompute_layers) == (is_raised, 0)
    found, needed = (at_the_end(each, "master") for each in (config, whole))
    assert np.linalg.norm(found - needed) <= 1e-12 * np.linalg.norm(needed)


def run_encoding(world: World, config: RunConfig, is_full: bool, resume: bool) -> list[PlacedPlan]:
    """The plans of a run; all ranks run out of memory in a launch that trains."""
    with tiny_session(world, config) as (session, heard):
        if is_full:
            session.recorder.progress = FullInLaunch("dit of ")
        train(session, heard.listener, resume=resume)
    return [report.plan for report in heard.reports]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.distributed
def test_a_run_that_encodes_in_its_steps_ends_alike_and_goes_on_to_the_same_weights(
    clips, tmp_path
):
    def config_in(name: str) -> RunConfig:
        config = tiny_config(clips, tmp_path / name, steps=4, batch=1)
        config = changed(config, "data", encode="online", cache=str(tmp_path / f"{name} cache"))
        return with_manifest(changed(with_patient_planner(config), "checkpoint", every=1))

    whole, config = config_in("whole"), config_in("run")
    plans = run_ranks(2, run_encoding, (whole, False, False), timeout_s=PATIENCE_S)[0]
    assert {launch.cascade.module for launch in plans[FULL_STEP].launches} > {"dit"}
    with pytest.raises(RankMemoryError, match=r"dit of .* on ranks 0-1\), planned with"):
        run_ranks(2, run_encoding, (config, True, False), timeout_s=PATIENCE_S)
    assert len(reports_in(config)) == 1
    run_ranks(2, run_encoding, (config, False, True), timeout_s=PATIENCE_S)
    found, needed = (at_the_end(each, "master") for each in (config, whole))
    assert np.linalg.norm(found - needed) <= 1e-12 * np.linalg.norm(needed)


def run_where_measuring_has_no_memory(world: World, config: RunConfig) -> None:
    """Memory of rank 1 is full in a launch that is measured before the first step."""
    made_loss, num_made = measure.made_loss, 0

    def full(*arguments: Any, **options: Any) -> Any:
        nonlocal num_made
        num_made += 1
        if world.rank == CULPRIT and num_made == 3:
            raise torch.OutOfMemoryError("planted")
        return made_loss(*arguments, **options)

    measure.made_loss = full
    with tiny_session(world, config) as (session, heard):
        train(session, heard.listener, resume=False)


@pytest.mark.distributed
def test_before_the_first_step_a_rank_without_memory_is_one_line(config):
    with pytest.raises(RankMemoryError) as error:
        run_ranks(2, run_where_measuring_has_no_memory, (changed(config, "cluster", name="auto"),))
    assert str(error.value).startswith("before the first step: rank 1 is out of memory; set optim")


@pytest.mark.parametrize(
    "text",
    [
        "NCCL error in: x.cpp:1, unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'",
        "NCCL error: Failed to CUDA calloc async 608 bytes",
        "CUDA error: out of memory",
    ],
)
def test_memory_that_nccl_or_cuda_lacks_is_no_lost_rank(text):
    assert is_out_of_memory(torch.distributed.DistBackendError(text))


def run_until_full_elsewhere(world: World, config: RunConfig, where: str) -> None:
    """Memory of rank 1 is full where gradients are added up, or at the validation loss."""

    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("planted")

    with tiny_session(world, config) as (session, heard):
        if world.rank == CULPRIT and where == "reduce":
            session.optimizer.reduce = full
        elif world.rank == CULPRIT:
            validation.slot_losses = full
        train(session, heard.listener, resume=False)


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("reduce", "step 1, outside of its launches: rank 1 is out of memory; set optimizer.grad"),
        (
            "held out",
            "validation loss or samples after 0 steps: rank 1 is out of memory; set validat",
        ),
    ],
)
def test_outside_of_launches_the_run_ends_with_one_line_that_says_where(config, where, line):
    validated = changed(config, "validation", every=1)
    with pytest.raises(RankMemoryError) as error:
        run_ranks(2, run_until_full_elsewhere, (validated, where), timeout_s=60.0)
    assert str(error.value).startswith(line)
    assert "--resume" in str(error.value)


class NoStore:
    """The rank that kept it has ended."""

    def __getattr__(self, name: str) -> Any:
        raise torch.distributed.DistNetworkError("connection closed")


def lines_of_full_ranks(world: World) -> list[str]:
    """What a rank ends with if all ranks run out at once: with a store, and without."""
    lines = []
    for each in (world, replace(world, store=cast(Any, NoStore()))):
        with (
            pytest.raises(RankMemoryError) as error,
            told_if_full(each, "step 1", "draw smaller samples"),
        ):
            raise torch.OutOfMemoryError("planted")
        lines.append(str(error.value))
    return lines


@pytest.mark.distributed
def test_of_ranks_that_run_out_at_once_all_end_with_the_line_of_the_first():
    with_store, without = zip(*run_ranks(3, lines_of_full_ranks), strict=True)
    assert len(set(with_store)) == 1
    assert [line.partition(";")[0] for line in without] == [
        f"step 1: rank {rank} is out of memory" for rank in range(3)
    ]
    assert with_store[0] in without


def tight_costs(spare: float) -> CostModel:
    """Of a clip that just fits on one GPU, nothing recomputed, with this much to spare."""
    costs = replace(COSTS, cluster=load_cluster("h100x4"), options=CostOptions(recompute="auto"))
    need_bytes = costs.memory_in(WHOLE, CLIP, 1).total
    device = replace(costs.cluster.device, memory_bytes=need_bytes * (1.0 + spare))
    return replace(costs, cluster=replace(costs.cluster, device=device))


SHAPE = "832x480x81"
BATCH = batch_of(*[SHAPE] * 8)
CLIP = Cascade(
    module="dit", slots=(0,), bucket=BATCH.clips[0].bucket, num_tokens=BATCH.clips[0].num_tokens
)


def with_report(costs: CostModel, report: MemoryReport) -> CostModel:
    reserves = RaisedReserves(dict(costs.state.raised_reserves))
    reserves.take(report)
    return replace(costs, state=replace(costs.state, raised_reserves=reserves.pairs))


def kinds_of(plan: PlacedPlan) -> set[Any]:
    return {(launch.degree, launch.mode.recompute_layers) for launch in plan.launches}


@pytest.mark.parametrize(("spare", "num_raised"), [(0.0, 1), (0.3, 1), (5.0, 3)])
def test_what_ran_out_of_memory_is_not_planned_again(spare, num_raised):
    costs = tight_costs(spare)
    first = plan_batch(PlanRequest(batch=BATCH, costs=costs, iterations=20))
    assert kinds_of(first) == {(1, 0)}, "whole clips on one GPU each are fastest"
    plan, num_times = first, 0
    while (1, 0) in kinds_of(plan):
        costs = with_report(costs, memory_report(costs, BATCH, plan, 0))
        plan = plan_batch(PlanRequest(batch=BATCH, costs=costs, iterations=20))
        num_times += 1
    assert num_times == num_raised, "an estimate at most doubles at once"
    assert not still_fits(costs, first)
    assert still_fits(costs, plan)


def test_a_clip_that_fits_nowhere_after_all_is_named():
    costs = replace(tight_costs(0.0), options=CostOptions())
    alone = replace(costs, cluster=replace(costs.cluster, num_nodes=1, gpus_per_node=1))
    need_bytes = alone.memory_in(WHOLE, CLIP, 1).total
    device = replace(alone.cluster.device, memory_bytes=need_bytes)
    alone = replace(alone, cluster=replace(alone.cluster, device=device))
    plan = plan_batch(PlanRequest(batch=batch_of(SHAPE), costs=alone))
    raised = with_report(alone, memory_report(alone, BATCH, plan, 0))
    with pytest.raises(InfeasibleError, match=r"of 832x480x81, 32,760 tokens, needs .* reserve"):
        plan_batch(PlanRequest(batch=batch_of(SHAPE), costs=raised))


def test_other_shapes_are_planned_as_before():
    costs = tight_costs(1.0)
    plan = plan_batch(PlanRequest(batch=BATCH, costs=costs, iterations=20))
    raised = with_report(costs, memory_report(costs, BATCH, plan, 0))
    other = replace(CLIP, num_tokens=CLIP.num_tokens - 1)
    assert raised.memory(other, (0,)) == costs.memory(other, (0,))
    assert raised.memory(CLIP, (0,)).reserve > costs.memory(CLIP, (0,)).reserve == 0.0


def test_an_estimate_is_raised_beyond_the_limit_but_at_most_doubled():
    use = MemoryUse(weights=60.0, activations=30.0, workspace=10.0, reserve=20.0)
    assert raised_reserve(use, 70.0) == pytest.approx(1.01 * 1.5 - 1.0), "it was over it already"
    assert raised_reserve(use, 130.0) == pytest.approx(1.01 * 70 / 40 - 1.0)
    assert raised_reserve(use, 1000.0) == pytest.approx(2.0)


@pytest.mark.distributed
def test_a_report_that_cannot_be_read_ends_the_run_in_one_line(config):
    path = Path(config.run.dir) / "out-of-memory-1-launch-0.json"
    path.write_text("{")
    with pytest.raises(
        DataError, match=r"report '.*out-of-memory-1-launch-0.json' cannot be read.*; delete it"
    ):
        run_ranks(1, run_until_full, (config, None, False))
