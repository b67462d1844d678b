"""The costliest launch runs once before the first step; what has no memory is planned otherwise."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from arachne.core.bucket import Bucket
from arachne.core.cluster import Cluster
from arachne.core.errors import InfeasibleError, RankMemoryError
from arachne.core.launch_mode import WHOLE
from arachne.core.strict_json import from_json
from arachne.cost.cluster_files import load_cluster
from arachne.runtime.launcher import run_ranks
from arachne.runtime.progress import Unwatched
from arachne.runtime.world import World
from arachne.trainer import cluster_choice, dry_run
from arachne.trainer.config import RunConfig
from arachne.trainer.loop import train
from arachne.trainer.measure import cascade_of, launches_on_blocks
from arachne.trainer.memory_reports import MEMORY_REPORTS, MemoryReport
from arachne.trainer.session import Session
from tests.trainer.tiny_runs import changed, tiny_config, tiny_session, with_manifest

pytestmark = pytest.mark.distributed

CULPRIT = 1
LARGEST, NUM_TOKENS = "64x48x9", 36
"""Of the shapes with most tokens, the one that comes last."""


@pytest.fixture
def config(clips, tmp_path) -> RunConfig:
    return with_manifest(tiny_config(clips, tmp_path / "run", steps=2))


def cluster_of(session: Session, num_bytes: float = 0.0) -> Cluster:
    """CPU ranks, of so much memory each if it is said."""
    cluster = load_cluster(f"cpux{session.world.size}")
    if not num_bytes:
        return cluster
    return replace(cluster, device=replace(cluster.device, memory_bytes=num_bytes))


def need_bytes(session: Session, degree: int) -> float:
    """Modelled memory of a launch of the largest shape, nothing recomputed."""
    costs = session.costs(cluster_of(session))
    return costs.memory_in(WHOLE, cascade_of(session, Bucket.parse(LARGEST)), degree).total


class Tried:
    """Takes the place of the launch's loss: notes shapes, and is full as often as it is told."""

    def __init__(self, times_full: int) -> None:
        self.shapes: list[str] = []
        self._left, self._kept = times_full, dry_run.made_loss

    def __call__(self, session: Session, bucket: Any, num_clips: int) -> torch.Tensor:
        self.shapes.append(str(bucket))
        if self._left > 0:
            self._left -= 1
            raise torch.OutOfMemoryError("planted")
        return self._kept(session, bucket, num_clips)


def tried_on(world: World, config: RunConfig, times_full: int) -> Any:
    """A dry run whose first launches on rank 1 have no memory."""
    with tiny_session(world, config) as (session, heard):
        tried = Tried(times_full if world.rank == CULPRIT else 0)
        dry_run.made_loss = tried
        dry_run.dry_run(session, cluster_of(session))
        has_gradient = any(bool(g.any()) for _, g in session.optimizer.gradients())
        num_events = len(session.recorder.finish(step=0, planner="").events)
        return tried.shapes, session.raised_reserves.pairs, heard.said, has_gradient, num_events


def reports_in(config: RunConfig) -> list[MemoryReport]:
    paths = sorted(Path(config.run.dir).glob(MEMORY_REPORTS))
    return [from_json(path.read_bytes(), MemoryReport, what=path.name) for path in paths]


def test_the_largest_shape_is_tried_on_every_rank_and_leaves_nothing_behind(config):
    for shapes, raised, said, has_gradient, num_events in run_ranks(2, tried_on, (config, 0)):
        assert shapes == [LARGEST]
        assert raised == ()
        assert not any("dry run" in line for line in said)
        assert not has_gradient
        assert num_events == 0
    assert reports_in(config) == []


def test_a_launch_without_memory_on_one_rank_raises_the_estimate_on_all_and_is_tried_again(config):
    by_rank = run_ranks(2, tried_on, (config, 2))
    (report,) = reports_in(config)
    assert (report.step, report.launch, report.rank, report.bucket) == (None, 0, None, LARGEST)
    for shapes, raised, *_ in by_rank:
        assert shapes == [LARGEST] * 3
        assert raised == ((NUM_TOKENS, report.reserve_share),)
    said = [line for line in by_rank[0][2] if line.startswith("dry run: out of memory in launch 0")]
    assert len(said) == 2
    assert said[-1].endswith(f"dry-run-{NUM_TOKENS}-tokens-launch-0.json")


def trained_where_one_fits(world: World, config: RunConfig, times_full: int) -> Any:
    """A run on devices on which the largest shape just fits alone; it has no memory there."""
    with tiny_session(world, config) as (session, heard):
        cluster = cluster_of(session, need_bytes(session, 1))
        cluster_choice.load_cluster = lambda name: cluster
        tried = Tried(times_full)
        dry_run.made_loss = tried
        train(session, heard.listener, resume=False)
        return heard.reports, tried.shapes


def test_what_had_no_memory_is_split_or_computed_twice_from_the_first_step_on(config):
    batch = changed(with_manifest(config), "batch", clips=6)
    for reports, shapes in run_ranks(2, trained_where_one_fits, (batch, 1)):
        assert len(shapes) >= 2
        assert [report.outcome.is_updated for report in reports] == [True, True]
        launches = [
            launch
            for report in reports
            for launch in report.plan.launches
            if launch.cascade.num_tokens == NUM_TOKENS
        ]
        assert launches
        assert all(launch.degree > 1 or launch.mode.recompute_layers for launch in launches)


def test_a_shape_that_has_no_memory_anywhere_is_named_before_the_first_step(config):
    words = rf"of {LARGEST}, {NUM_TOKENS} tokens, needs .* whose reports .* delete them$"
    with pytest.raises(InfeasibleError, match=words):
        run_ranks(2, trained_where_one_fits, (config, 1000))


def bytes_to_come(world: World, config: RunConfig) -> tuple[int, int, float]:
    """Before and after the first update, and what plans count for state and masters."""
    with tiny_session(world, config) as (session, _):
        cluster = cluster_of(session)
        costs = session.costs(cluster)
        (launch, *_) = launches_on_blocks(costs, cascade_of(session, Bucket.parse(LARGEST)), 1)
        before = dry_run._bytes_to_come(session, costs, launch)  # pyright: ignore[reportPrivateUsage]
        session.optimizer.step(lr=0.0)
        after = dry_run._bytes_to_come(session, costs, launch)  # pyright: ignore[reportPrivateUsage]
        return before, after, costs.memory_in(WHOLE, launch.cascade, 1).optimizer


def test_the_state_that_the_first_update_makes_is_held_too(config):
    for before, after, optimizer_bytes in run_ranks(2, bytes_to_come, (config,)):
        assert before == pytest.approx(optimizer_bytes * 2 / 3, rel=0.02)
        assert after <= 0.02 * optimizer_bytes


class FullAtThird(Unwatched):
    """Memory is full at the third collective of a launch."""

    def __init__(self) -> None:
        self._left = 3
        self._launch: int | None = None

    def change(self, activity: str, launch: int | None = None, *, is_waiting: bool = False) -> None:
        self._launch = launch

    def issued(self, operation: str, ranks: tuple[int, ...]) -> None:
        self._left -= self._launch is not None
        if self._left == 0:
            raise torch.OutOfMemoryError("planted")


def stranded(world: World, config: RunConfig) -> None:
    """A dry run on two ranks at once; one of them has no memory within the launch."""
    with tiny_session(world, config) as (session, _), pytest.MonkeyPatch.context() as patched:
        patched.setattr(Session, "degrees", (2,))
        if world.rank == CULPRIT:
            session.recorder.progress = FullAtThird()
        dry_run.dry_run(session, cluster_of(session))


def test_within_a_launch_the_run_ends_with_a_report_that_the_next_start_reads(config):
    with pytest.raises(RankMemoryError) as error:
        run_ranks(2, stranded, (config,))
    (report,) = reports_in(config)
    assert (report.step, report.rank, report.ranks) == (None, CULPRIT, (0, 1))
    assert str(error.value).startswith(
        f"dry run: rank 1 is out of memory in launch 0 (dit of {report.bucket}, "
    )
    known = ((report.num_tokens, report.reserve_share),)
    for _, raised, *_ in run_ranks(2, tried_on, (config, 0)):
        assert raised == known
