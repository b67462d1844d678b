"""Memory runs out at any collective of a launch, on one of its ranks or on all: what every rank
ends with, and the run that goes on from there."""

import functools
import multiprocessing.connection
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from arachne.core.batch import Batch
from arachne.core.errors import RankMemoryError
from arachne.core.launch_mode import LaunchMode
from arachne.core.placed_plan import PlacedPlan
from arachne.core.strict_json import from_json
from arachne.runtime import launcher
from arachne.runtime.hang_report import span_text
from arachne.runtime.launcher import run_ranks
from arachne.runtime.plan_source import PlanSource
from arachne.runtime.progress import Unwatched
from arachne.runtime.world import World
from arachne.trainer import step
from arachne.trainer.checkpoint_files import checkpoints_dir, step_folders
from arachne.trainer.config import RunConfig
from arachne.trainer.loop import train
from arachne.trainer.memory_reports import MEMORY_REPORTS, MemoryReport
from tests.runtime.meetings import meetings_of
from tests.trainer.test_exact_resume import at_the_end
from tests.trainer.tiny_runs import changed, plan_of, tiny_config, tiny_session, with_manifest

pytestmark = pytest.mark.distributed

STEPS = 3
FULL_STEP = 1
FULL_LAUNCH = 2
ENDS_WITHIN_S = 40.0
"""Ranks that wait for one that has ended learn of it at once; gloo itself waits for longer."""

TIMEOUT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Split:
    """The launch in which memory runs out: its ranks, in a world, and its mode."""

    world_size: int
    ranks: tuple[int, ...]
    mode: LaunchMode

    @property
    def num_collectives(self) -> int:
        """The first one is the gate: it asks whether all came so far."""
        return 1 + sum(meetings_of(self.mode, degree=len(self.ranks), num_layers=1).values())

    def plan(self, batch: Batch) -> PlacedPlan:
        """A clip each on the last and the first rank, one in the launch, one on all ranks."""
        everyone = tuple(range(self.world_size))
        blocks = ((self.world_size - 1,), (0,), self.ranks, everyone)
        plan = plan_of(batch, self.world_size, [((slot,), on) for slot, on in enumerate(blocks)])
        modes = (LaunchMode(), LaunchMode(), self.mode, LaunchMode())
        launches = zip(plan.launches, modes, strict=True)
        return replace(plan, launches=tuple(replace(each, mode=mode) for each, mode in launches))


SPLITS = {
    "two": Split(world_size=2, ranks=(0, 1), mode=LaunchMode(recompute_layers=1)),
    "three": Split(world_size=3, ranks=(0, 1, 2), mode=LaunchMode(ring=3, recompute_layers=1)),
    "two-of-three": Split(world_size=3, ranks=(0, 1), mode=LaunchMode(recompute_layers=1)),
}
"""Trading heads, and as a ring; the block is computed twice, so that its forward meets twice."""


@dataclass(frozen=True, kw_only=True)
class Full:
    """Whose memory is full, and before which collective of the launch.

    Their number stands for the backward after the last one.
    """

    culprits: tuple[int, ...]
    collective: int

    def __str__(self) -> str:
        ranks = "-".join(map(str, self.culprits))
        return f"collective-{self.collective}-on-{ranks}"


class FullAt(Unwatched):
    """Memory of this rank is full once, at one place of one launch in one step."""

    def __init__(self, collective: int) -> None:
        self._collective: int | None = collective
        self._step = self._num_issued = 0
        self._launch: int | None = None

    def begin_step(self, step: int, launch_texts: Any) -> None:
        self._step, self._num_issued = step, 0

    def change(self, activity: str, launch: int | None = None, *, is_waiting: bool = False) -> None:
        self._launch = launch

    def issued(self, operation: str, ranks: tuple[int, ...]) -> None:
        self.raise_if_full()
        self._num_issued += self._is_there

    def raise_if_full(self) -> None:
        if self._is_there and self._num_issued == self._collective:
            self._collective = None
            raise torch.OutOfMemoryError("planted")

    @property
    def _is_there(self) -> bool:
        return (self._step, self._launch) == (FULL_STEP, FULL_LAUNCH)


def train_by_hand(
    world: World, config: RunConfig, split: Split, planted: Full | str, resume: bool
) -> tuple[list[bool], Any]:
    """Which steps changed something, and what was known of memory before them."""
    with tiny_session(world, config) as (session, heard):
        PlanSource.request = lambda self, step: None
        PlanSource.obtain = lambda self, step: split.plan(session.step_batch(step).batch)
        known = session.raised_reserves.pairs
        if isinstance(planted, Full) and world.rank in planted.culprits:
            progress = FullAt(planted.collective)
            session.recorder.progress = progress
            # Its gradient comes last.
            first = session.model.module.get_parameter("patch_embedding.weight")
            first.register_hook(lambda gradient: progress.raise_if_full())
        elif planted == NOT_FINITE:
            losses = step.slot_losses
            step.slot_losses = lambda *args: (
                losses(*args) * (float("nan") if len(heard.reports) == 0 else 1.0)
            )
        train(session, heard.listener, resume=resume)
    return [report.outcome.is_updated for report in heard.reports], known


NOTHING, NOT_FINITE = "nothing", "the first step's losses are not finite"


def trained(
    config: RunConfig, split: Split, planted: Full | str = NOTHING, *, resume: bool = True
) -> tuple[list[bool], Any]:
    """The same on every rank."""
    args = (config, split, planted, resume)
    first, *others = run_ranks(split.world_size, train_by_hand, args, timeout_s=TIMEOUT_S)
    assert all(other == first for other in others)
    return first


def begun_from(config: RunConfig, folder: Path) -> RunConfig:
    """The run as it stood before the step in which memory runs out, in another folder."""
    shutil.copytree(config.run.dir, folder)
    for found in step_folders(checkpoints_dir(folder)):
        if found.step > FULL_STEP:
            shutil.rmtree(found.path)
    return changed(config, "run", dir=str(folder))


@dataclass(frozen=True, kw_only=True)
class Undisturbed:
    """A run that never stopped, its weights, and those if the step had changed nothing."""

    config: RunConfig
    weights: np.ndarray
    weights_without: np.ndarray


@pytest.fixture(scope="module")
def undisturbed(clips, tmp_path_factory) -> Callable[[Split], Undisturbed]:
    """What runs are compared with, by how they are split."""

    @functools.cache
    def run_of(split: Split) -> Undisturbed:
        folder = tmp_path_factory.mktemp("undisturbed")
        config = tiny_config(clips, folder / "run", steps=STEPS)
        config = with_manifest(changed(config, "checkpoint", every=1, keep=0))
        assert trained(config, split, resume=False) == ([True] * STEPS, ())
        without = begun_from(config, folder / "without")
        assert trained(without, split, NOT_FINITE) == ([False, True], ())
        return Undisturbed(
            config=config,
            weights=at_the_end(config, "master"),
            weights_without=at_the_end(without, "master"),
        )

    return run_of


def ends_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> dict[int, Any]:
    """By rank, how it ended by itself: no rank is ended by the launcher before."""
    ends: dict[int, Any] = {}

    def culprit(failures: Any, waiting: Any, processes: Any, pipes: Any) -> Any:
        ends.update(failures)
        while waiting:
            ready = multiprocessing.connection.wait(list(waiting), timeout=ENDS_WITHIN_S)
            assert ready, f"ranks {sorted(waiting.values())} wait for ever"
            for pipe in ready:
                rank = waiting.pop(pipe)
                ends[rank] = launcher._outcome_of(processes[rank], pipes[rank], rank)
        return kept({**failures, **ends}, waiting, processes, pipes)

    kept = launcher._culprit
    monkeypatch.setattr(launcher, "_culprit", culprit)
    return ends


def report_in(config: RunConfig) -> MemoryReport:
    (path,) = Path(config.run.dir).glob(MEMORY_REPORTS)
    return from_json(path.read_bytes(), MemoryReport, what=path.name)


def check_full(split: Split, full: Full, base: Undisturbed, folder: Path, monkeypatch: Any) -> None:
    """Whatever collective it was that memory was full before."""
    config = begun_from(base.config, folder / "run")
    if full.collective == 0:  # the gate: nobody is inside yet
        assert trained(config, split, full) == ([False, True], ())
        report = report_in(config)
        assert (report.rank, report.launch, report.step) == (None, FULL_LAUNCH, FULL_STEP)
        assert np.array_equal(at_the_end(config, "master"), base.weights_without)
        return
    ends = ends_of_all_ranks(monkeypatch)
    with pytest.raises(RankMemoryError) as error:
        trained(config, split, full)
    line = str(error.value)
    assert {end.message for end in ends.values()} == {line}, "all ranks end with one line"
    assert sorted(ends) == list(range(split.world_size))
    report = report_in(config)
    assert report.rank in full.culprits
    num_entered = min(full.collective, split.num_collectives - 1)
    assert (report.step, report.launch, report.ranks) == (FULL_STEP, FULL_LAUNCH, split.ranks)
    assert (report.mode, report.num_entered) == (split.mode, num_entered)
    assert report.raised_bytes > report.expected_bytes
    assert line.startswith(
        f"step 2: rank {report.rank} is out of memory in launch {FULL_LAUNCH} (dit of "
        f"{report.bucket}, {report.clips[0]!r}, on ranks {span_text(split.ranks)}), planned with"
    )
    assert f"it was in collective {num_entered} of the launch" in line
    monkeypatch.undo()

    known = ((report.num_tokens, report.reserve_share),)
    assert trained(config, split) == ([True, True], known)
    assert np.array_equal(at_the_end(config, "master"), base.weights), "bit for bit"


SOME = [
    ("two", Full(culprits=(0, 1), collective=4)),
    ("two-of-three", Full(culprits=(0,), collective=7)),
]
"""While the block is computed again, on all ranks; in its backward, on one."""


@pytest.mark.parametrize(("name", "full"), SOME, ids=str)
def test_memory_that_runs_out_in_a_launch_ends_all_ranks_alike_and_the_run_goes_on_as_it_was(
    name, full, undisturbed, tmp_path, monkeypatch
):
    check_full(SPLITS[name], full, undisturbed(SPLITS[name]), tmp_path, monkeypatch)


EVERYWHERE = [
    (name, Full(culprits=culprits, collective=collective))
    for name, split in SPLITS.items()
    for culprits in (*((rank,) for rank in split.ranks), split.ranks)
    for collective in range(split.num_collectives + 1)
]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "full"), EVERYWHERE, ids=str)
def test_memory_that_runs_out_at_every_collective_does_so_too(
    name, full, undisturbed, tmp_path, monkeypatch
):
    check_full(SPLITS[name], full, undisturbed(SPLITS[name]), tmp_path, monkeypatch)
