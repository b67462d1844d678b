"""A resumed run is the run that never stopped: bit for bit on its world, to rounding on others."""

import hashlib
import shutil
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arachne.core.errors import CheckpointError
from arachne.core.placed_plan import PlacedPlan
from arachne.cost.online_calibration import OnlineCalibration
from arachne.reporting.run_files import MANIFEST
from arachne.runtime.launcher import run_ranks
from arachne.runtime.world import World
from arachne.trainer.checkpoint_reader import CheckpointReader, newest
from arachne.trainer.config import RunConfig
from arachne.trainer.dataset import TrainingData
from arachne.trainer.loop import train
from tests.trainer.tiny_runs import changed, tiny_config, tiny_session, with_manifest

pytestmark = pytest.mark.distributed


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one rank saw of a run, or of the part after it was resumed."""

    losses: list[float]
    rates: list[float]
    clips: list[list[str]]
    plans: list[PlacedPlan]
    parameters: list[str]
    """SHA-256 of all parameters after each step."""
    said: list[str]


def slower_each_time(self: OnlineCalibration) -> None:
    """Instead of what launches took: so every plan tells which correction it was made after."""
    cluster = self._costs.cluster
    device = replace(cluster.device, layer_s=1.5 * cluster.device.layer_s)
    self._costs = replace(self._costs, cluster=replace(cluster, device=device))


def part_of_a_run(world: World, config: RunConfig, options: dict[str, Any]) -> Part:
    OnlineCalibration.recalibrate = slower_each_time  # pyright: ignore[reportAttributeAccessIssue]
    parameters: list[str] = []
    with tiny_session(world, config) as (session, heard):

        def on_step(report: Any) -> None:
            heard.reports.append(report)
            digest = hashlib.sha256()
            for parameter in session.model.module.parameters():
                digest.update(parameter.detach().numpy().tobytes())
            parameters.append(digest.hexdigest())

        train(session, replace(heard.listener, on_step=on_step), **options)
    return Part(
        losses=heard.losses,
        rates=[report.lr for report in heard.reports],
        clips=heard.clips,
        plans=[report.plan for report in heard.reports],
        parameters=parameters,
        said=heard.said,
    )


def moved(config: RunConfig, folder: Path) -> RunConfig:
    return changed(config, "run", dir=str(folder))


def test_with_a_corrected_cost_model_the_same_world_goes_on_bit_for_bit(clips, tmp_path):
    config = with_manifest(tiny_config(clips, tmp_path / "run", steps=6, dtype="float32"))
    config = changed(config, "planner", recalibrate_every=1)
    config = changed(config, "checkpoint", every=3, keep=0)
    whole = run_ranks(2, part_of_a_run, (config, {"resume": False}))
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "checkpoints" / "step-000006")
    again = run_ranks(2, part_of_a_run, (moved(config, tmp_path / "again"), {"resume": True}))
    assert len({plan.makespan_s for plan in whole[0].plans}) > 3, "corrections change plans"
    for before, after in zip(whole, again, strict=True):
        assert after.plans == before.plans[3:]
        assert after.parameters == before.parameters[3:]
        assert after.losses == before.losses[3:]


def test_another_world_or_planner_takes_no_stored_plan(clips, tmp_path):
    config = with_manifest(tiny_config(clips, tmp_path / "run", steps=6))
    config = changed(config, "checkpoint", every=3, keep=0)
    (whole,) = run_ranks(1, part_of_a_run, (config, {"resume": False}))
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-000006")
    fixed = changed(config, "planner", name="static_sp")
    for world_size, own in ((2, config), (1, fixed)):
        shutil.copytree(tmp_path / "run", tmp_path / str(world_size))
        there = moved(own, tmp_path / str(world_size))
        part = run_ranks(world_size, part_of_a_run, (there, {"resume": True}))[0]
        assert part.plans[0].world_size == world_size
        assert part.plans[0] != whole.plans[3]
        assert part.clips == whole.clips[3:]


def at_the_end(config: RunConfig, kind: str) -> np.ndarray:
    """All values of one kind in a run's last checkpoint."""
    reader = CheckpointReader(newest(Path(config.run.dir), on_skip=print))
    sizes = {name: prod(shape) for name, shape in sorted(reader.parameters.items())}
    return np.concatenate([reader.read(name, kind, 0, size) for name, size in sizes.items()])


@pytest.mark.parametrize(
    ("dtype", "parts", "error"),
    [
        ("float32", ((4, 4), (2, 7), (3, 9)), 1e-5),
        ("float64", ((3, 3), (2, 13)), 1e-9),  # ten steps after the change
    ],
)
def test_a_run_goes_on_as_one_over_changing_worlds(clips, tmp_path, dtype, parts, error):
    # In the middle of an epoch: 6 clips, 4 in a step.
    config = tiny_config(clips, tmp_path / "one", steps=parts[-1][1], dtype=dtype)
    config = with_manifest(changed(config, "optimizer", ema_decay=0.9, warmup_steps=6))
    (whole,) = run_ranks(1, part_of_a_run, (config, {"resume": False}))
    there = with_manifest(moved(config, tmp_path / "run"))
    losses: list[float] = []
    rates: list[float] = []
    names: list[list[str]] = []
    for world_size, steps in parts:
        # Clips may be read ahead as far as a machine has room.
        own = changed(changed(there, "run", steps=steps), "data", read_ahead_mb=world_size)
        part = run_ranks(world_size, part_of_a_run, (own, {"resume": bool(losses)}))[0]
        losses += part.losses
        rates += part.rates
        names += part.clips
    assert names == whole.clips
    assert rates == whole.rates
    assert losses == pytest.approx(whole.losses, rel=error)
    for kind in ("master", "ema"):
        found, needed = (at_the_end(own, kind) for own in (there, config))
        assert np.linalg.norm(found - needed) <= error * np.linalg.norm(needed), kind


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "steps", "error"), [("float32", 2, 1e-5), ("float64", 10, 1e-9)])
def test_sixteen_pairs_of_worlds_go_on_with_the_losses_of_one(clips, tmp_path, dtype, steps, error):
    config = with_manifest(tiny_config(clips, tmp_path / "one", steps=3 + steps, dtype=dtype))
    (whole,) = run_ranks(1, part_of_a_run, (config, {"resume": False}))
    for before in range(1, 5):
        first = moved(config, tmp_path / f"{before}")
        run_ranks(before, part_of_a_run, (changed(first, "run", steps=3), {"resume": False}))
        for after in range(1, 5):
            folder = tmp_path / f"{before}-{after}"
            shutil.copytree(tmp_path / f"{before}", folder)
            part = run_ranks(after, part_of_a_run, (moved(config, folder), {"resume": True}))[0]
            assert part.clips == whole.clips[3:]
            assert part.losses == pytest.approx(whole.losses[3:], rel=error), (before, after)


def without_one(world: World, config: RunConfig, options: dict[str, Any]) -> Part:
    """The first clip is not there any more."""
    init = TrainingData.__init__

    def shorter(self: TrainingData, *, rows: Any, **others: Any) -> None:
        init(self, rows=rows[1:], **others)

    TrainingData.__init__ = shorter
    return part_of_a_run(world, config, options)


def test_other_clips_are_refused_unless_asked_for_and_then_said(clips, tmp_path):
    config = with_manifest(tiny_config(clips, tmp_path / "run", steps=1))
    run_ranks(1, part_of_a_run, (config, {"resume": False}))
    longer = changed(config, "run", steps=2)
    with pytest.raises(CheckpointError, match=r"trained on 6 clips until step 1, .* 5; .*--rescan"):
        run_ranks(1, without_one, (longer, {"resume": True}))
    (part,) = run_ranks(1, without_one, (longer, {"resume": True, "takes_other_clips": True}))
    assert any("now has 5; it goes on with those, in a new order" in line for line in part.said)
    assert len(part.losses) == 1


def test_a_checkpoint_does_not_grow_with_the_run(clips, tmp_path, monkeypatch):
    monkeypatch.setattr("arachne.trainer.state.LOSSES_KEPT", 2)
    config = with_manifest(tiny_config(clips, tmp_path / "run", steps=4))
    (part,) = run_ranks(1, part_of_a_run, (config, {"resume": False}))
    state = CheckpointReader(tmp_path / "run" / "checkpoints" / "step-000004").state
    assert state.losses == tuple(part.losses[-2:])
    assert state.num_updates == 4
    assert (tmp_path / "run" / MANIFEST).is_file()
