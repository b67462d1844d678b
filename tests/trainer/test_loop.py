"""Whole tiny runs: on one, two and three ranks, stopped, resumed, and with things going wrong."""

import hashlib
import os
import shutil
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from arachne.core.errors import CheckpointError, DataError, InfeasibleError
from arachne.cost.cluster_files import load_cluster
from arachne.runtime.launcher import run_ranks
from arachne.runtime.world import World
from arachne.trainer import cluster_choice, step
from arachne.trainer.checkpoint_reader import newest
from arachne.trainer.config import RunConfig
from arachne.trainer.dataset import TrainingData
from arachne.trainer.loop import Finished, train
from tests.trainer.tiny_runs import (
    Heard,
    changed,
    poisoned,
    tiny_config,
    tiny_session,
    with_manifest,
)

STEPS = 5
Chance = dict[tuple[int, int], tuple[str, float, bool]]
"""By (step, slot): digest of the noise, noise level, whether the caption stayed."""


@dataclass(kw_only=True)
class Run:
    """What one rank saw of a run."""

    finished: Finished
    losses: list[float]
    norms: list[float]
    clips: list[list[str]]
    planners: set[str]
    validations: list[tuple[int, float]]
    said: list[str]
    chance: Chance
    num_skipped: int


def trained(world: World, config: RunConfig, **options: Any) -> Run:
    chance: Chance = {}
    sample_of_slot = step.sample_of_slot

    def noted(session: Any, chosen: Any, slot: int, arrays: Any) -> Any:
        sample = sample_of_slot(session, chosen, slot, arrays)
        digest = hashlib.sha256(sample.noise.numpy().tobytes()).hexdigest()
        chance[chosen.batch.step, slot] = (digest, sample.sigma, sample.has_caption)
        return sample

    step.sample_of_slot = noted
    with tiny_session(world, config) as (session, heard):
        listener = heard.listener
        if "signal_after" in options:
            listener = _signalling(world, heard, *options.pop("signal_after"))
        finished = train(session, listener, **{"resume": False, **options})
    return Run(
        finished=finished,
        losses=heard.losses,
        norms=[report.outcome.grad_norm for report in heard.reports],
        clips=heard.clips,
        planners={report.plan.planner for report in heard.reports},
        validations=heard.validations,
        said=heard.said,
        chance=chance,
        num_skipped=heard.reports[-1].num_skipped if heard.reports else 0,
    )


def _signalling(world: World, heard: Heard, rank: int, after_step: int) -> Any:
    def on_step(report: Any) -> None:
        heard.reports.append(report)
        if world.rank == rank and report.step == after_step:
            os.kill(os.getpid(), signal.SIGTERM)

    return replace(heard.listener, on_step=on_step)


def trained_with(world: World, config: RunConfig, options: dict[str, Any]) -> Run:
    return trained(world, config, **options)


@pytest.fixture(scope="module")
def config(clips, tmp_path_factory) -> RunConfig:
    """Validates, and crosses the end of an epoch: 6 clips, 4 in a step."""
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    return changed(tiny_config(clips, run_dir, steps=STEPS), "validation", every=2)


def in_dir(config: RunConfig, folder: Path) -> RunConfig:
    return with_manifest(changed(config, "run", dir=str(folder)))


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory) -> dict[int, list[Run]]:
    """The same run on 1, 2 and 3 ranks."""
    root = tmp_path_factory.mktemp("worlds")
    return {
        size: run_ranks(size, trained, (in_dir(config, root / str(size)),)) for size in (1, 2, 3)
    }


@pytest.mark.distributed
def test_the_loss_curve_is_the_same_on_every_world_and_rank(whole):
    alone = whole[1][0]
    assert len(alone.losses) == STEPS
    assert alone.losses[0] != alone.losses[-1]
    for run in (*whole[2], *whole[3]):
        assert run.clips == alone.clips
        assert run.losses == pytest.approx(alone.losses, rel=1e-9)
        assert run.norms == pytest.approx(alone.norms, rel=1e-8)
        assert run.finished.losses == pytest.approx(alone.losses, rel=1e-9)
        assert not run.finished.was_stopped


@pytest.mark.distributed
def test_in_float32_the_loss_curves_agree_to_rounding(config, whole, tmp_path):
    # Case: the default precision, with stacking and degrees that differ between worlds.
    single = changed(config, "model", dtype="float32")
    alone = run_ranks(1, trained, (in_dir(single, tmp_path / "1"),))[0]
    run = run_ranks(2, trained, (in_dir(single, tmp_path / "2"),))[0]
    assert run.losses == pytest.approx(alone.losses, rel=1e-5)
    assert run.losses == pytest.approx(whole[1][0].losses, rel=1e-4)


@pytest.mark.distributed
def test_validation_is_the_same_on_every_world_and_runs_before_the_first_and_after_the_last_step(
    whole,
):
    alone = whole[1][0].validations
    assert [step for step, _ in alone] == [0, 2, 4, 5]
    assert alone[0][1] != alone[1][1]
    for run in (*whole[2], *whole[3]):
        assert [step for step, _ in run.validations] == [0, 2, 4, 5]
        assert [loss for _, loss in run.validations] == pytest.approx(
            [loss for _, loss in alone], rel=1e-9
        )


@pytest.mark.distributed
def test_process_groups_are_counted_where_there_are_some(whole):
    said = {size: [s for s in whole[size][0].said if "process group" in s] for size in (1, 3)}
    assert said == {
        1: ["one rank, which needs no process group"],
        3: ["2 process groups, at most 2 of them on one rank"],
    }


def test_noise_level_and_captions_of_a_clip_do_not_depend_on_rank_or_world(whole):
    alone = whole[1][0].chance
    assert len(alone) == STEPS * 4
    for runs in (whole[2], whole[3]):
        assert set().union(*(run.chance for run in runs)) == set(alone)
        for run in runs:
            assert all(alone[key] == value for key, value in run.chance.items())


@pytest.fixture(scope="module")
def stopped(config, tmp_path_factory) -> tuple[RunConfig, list[Run]]:
    """One rank of two is asked to stop after two steps, before the validation loss is measured."""
    own = in_dir(config, tmp_path_factory.mktemp("stopped") / "run")
    return own, run_ranks(2, trained_with, (own, {"signal_after": (1, 1)}))


@pytest.mark.distributed
def test_a_signal_to_one_rank_ends_all_after_the_same_step_with_a_checkpoint(stopped, whole):
    own, runs = stopped
    for run in runs:
        assert run.finished.was_stopped
        assert run.finished.step == len(run.losses) == 2
        assert run.losses == pytest.approx(whole[1][0].losses[:2], rel=1e-9)
    skipped: list[str] = []
    assert newest(Path(own.run.dir), on_skip=skipped.append).name == "step-000002"
    assert not skipped


@pytest.mark.distributed
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(stopped, whole, tmp_path, world_size):
    own, _ = stopped
    shutil.copytree(own.run.dir, tmp_path / "run")
    moved = changed(own, "run", dir=str(tmp_path / "run"))
    for run in run_ranks(world_size, trained_with, (moved, {"resume": True})):
        assert run.clips == whole[1][0].clips[2:]
        assert run.losses == pytest.approx(whole[1][0].losses[2:], rel=1e-9)
        assert run.finished.losses == pytest.approx(whole[1][0].losses, rel=1e-9)
        if world_size == 2:
            assert run.losses == whole[2][0].losses[2:], "bit for bit on the same world"
        assert run.validations == [
            (step, pytest.approx(loss, rel=1e-9))
            for step, loss in whole[1][0].validations
            if step >= 2
        ]


@pytest.mark.distributed
def test_a_signal_in_the_last_step_leaves_its_validation_loss_on_to_a_resumed_run(config, tmp_path):
    own = in_dir(config, tmp_path / "run")
    for run in run_ranks(2, trained_with, (own, {"signal_after": (0, STEPS - 1)})):
        assert run.finished.was_stopped
        assert run.finished.step == STEPS
        assert STEPS not in dict(run.validations)
    for run in run_ranks(2, trained_with, (own, {"resume": True})):
        assert not run.finished.was_stopped
        assert not run.losses
        assert run.validations[-1][0] == STEPS


@pytest.mark.distributed
def test_resuming_with_another_model_is_one_line_on_all_ranks(stopped, tmp_path):
    own, _ = stopped
    other = changed(own, "model", ffn_size=36)
    with pytest.raises(CheckpointError, match=r"checkpoint of step 2 has .*\(24,\).*\(36,\)"):
        run_ranks(2, trained_with, (other, {"resume": True}))


@pytest.mark.distributed
def test_a_planner_that_fails_is_replaced_and_said(config, whole, tmp_path):
    own = changed(in_dir(config, tmp_path / "run"), "planner", name="no_such_planner")
    runs = run_ranks(2, trained, (own,))
    for run in runs:
        assert run.planners == {cluster_choice.FALLBACK_PLANNER}
        assert run.losses == pytest.approx(whole[1][0].losses, rel=1e-9)
    assert sum("using the static fallback plan" in line for line in runs[0].said) == STEPS


def trained_with_bad_clips(
    world: World, config: RunConfig, names: tuple[str, ...], how: str, options: dict[str, Any]
) -> Run:
    read = TrainingData.read

    def bad_read(self: TrainingData, item: int) -> Any:
        if self.rows[item].clip.name not in names:
            return read(self, item)
        if how == "lost by all" or (how == "lost" and world.rank == 0):
            raise DataError("gone")
        return poisoned(read(self, item)) if how == "nan" else read(self, item)

    TrainingData.read = bad_read
    return trained(world, config, **options)


def limited(config: RunConfig, most: int) -> RunConfig:
    return changed(config, "run", max_bad_steps=most)


@pytest.mark.distributed
def test_without_a_limit_a_run_of_bad_steps_goes_on_to_its_end(clips, tmp_path):
    names = ("a.mp4", "b.mp4", "c.mp4", "d.mp4", "e.png", "f.png")
    own = with_manifest(tiny_config(clips, tmp_path / "run", steps=12))
    (run,) = run_ranks(1, trained_with_bad_clips, (limited(own, 0), names, "nan", {}))
    assert (run.finished.step, run.finished.losses) == (12, ())


@pytest.mark.distributed
def test_a_clip_with_nan_is_named_and_after_some_such_steps_in_a_row_the_run_ends(clips, tmp_path):
    names = ("a.mp4", "b.mp4", "c.mp4", "d.mp4", "e.png", "f.png")
    own = with_manifest(tiny_config(clips, tmp_path / "run", steps=9))
    with pytest.raises(
        DataError,
        match=r"2 steps in a row could not be trained; in the last, step 2: no finite gradient "
        r"\(clips '.*' \(\d+x\d+x\d, noise level 0\.\d+, ranks [01]",
    ):
        run_ranks(2, trained_with_bad_clips, (limited(own, 2), names, "nan", {}))


@pytest.mark.distributed
def test_good_steps_between_bad_ones_let_a_run_go_on(clips, tmp_path):
    own = with_manifest(tiny_config(clips, tmp_path / "run", steps=10, batch=1))
    runs = run_ranks(2, trained_with_bad_clips, (limited(own, 2), ("d.mp4",), "nan", {}))
    assert runs[0].num_skipped == 2
    for run in runs:
        assert len(run.finished.losses) == 8
        assert run.finished.step == 10
    lines = [line for line in runs[0].said if "skipped" in line]
    assert len(lines) == 2
    assert all("no finite gradient (clips 'd.mp4' (32x32x9, noise level" in x for x in lines)


@pytest.mark.distributed
def test_clips_that_one_rank_cannot_read_are_named_and_the_run_ends_well(clips, tmp_path):
    own = with_manifest(tiny_config(clips, tmp_path / "run", steps=6, batch=1))
    own = changed(own, "planner", name="static_sp")  # every rank reads every clip
    for run in run_ranks(2, trained_with_bad_clips, (own, ("c.mp4",), "lost", {})):
        assert run.finished.left_out == ("c.mp4",)
        assert len(run.finished.losses) == 5
        assert any("clip 'c.mp4' cannot be read; left out" in line for line in run.said)
        assert any("none of its clips can be read; step skipped" in line for line in run.said)


@pytest.mark.distributed
def test_a_cache_that_is_gone_ends_the_run_with_advice(clips, tmp_path):
    names = ("a.mp4", "b.mp4", "c.mp4", "d.mp4", "e.png", "f.png")
    own = with_manifest(tiny_config(clips, tmp_path / "run", steps=6, batch=1))
    own = changed(own, "planner", name="static_sp")
    with pytest.raises(DataError, match=r"3 steps in a row .* delete '.*cache' to encode"):
        run_ranks(2, trained_with_bad_clips, (limited(own, 3), names, "lost", {}))


@pytest.mark.distributed
def test_validation_is_the_mean_over_the_clips_that_can_be_read(config, whole, tmp_path):
    own = changed(in_dir(config, tmp_path / "run"), "run", steps=1)
    everything = whole[1][0].validations[0][1]

    def without(world_size: int, *names: str) -> float:
        shutil.rmtree(tmp_path / "run" / "checkpoints", ignore_errors=True)
        runs = run_ranks(world_size, trained_with_bad_clips, (own, names, "lost by all", {}))
        said = [line for line in runs[0].said if line.startswith("validation: clip ")]
        assert all(name in " ".join(said) for name in names)
        return runs[0].validations[0][1]

    # With S the sum over 6 clips: 5·(S - a)/5 + 5·(S - d)/5 - 6·S/6 = S - a - d.
    expected = (5 * without(1, "a.mp4") + 5 * without(1, "d.mp4") - 6 * everything) / 4
    assert without(2, "a.mp4", "d.mp4") == pytest.approx(expected, rel=1e-9)


def trained_on_small_gpus(world: World, config: RunConfig) -> Run:
    cluster = load_cluster(f"cpux{world.size}")
    device = replace(cluster.device, memory_bytes=1e6)
    cluster_choice.load_cluster = lambda name: replace(cluster, device=device)
    return trained(world, config)


@pytest.mark.distributed
def test_a_clip_that_fits_nowhere_is_named_before_the_first_step(clips, tmp_path):
    # The first steps would not have drawn this clip.
    own = with_manifest(tiny_config(clips, tmp_path / "run", batch=1))
    own = changed(own, "planner", recompute="none")
    named = r"clip 'a.mp4' of 64x48x9, .*; or lower data\.resolution or data\.frame_buckets, or use"
    with pytest.raises(InfeasibleError, match=named):
        run_ranks(2, trained_on_small_gpus, (own,))


def test_a_finished_run_is_resumed_without_another_step(config, whole, tmp_path, clips):
    own = with_manifest(tiny_config(clips, tmp_path / "run", steps=1))
    first = run_ranks(1, trained, (own,))[0]
    again = run_ranks(1, trained_with, (own, {"resume": True}))[0]
    assert again.losses == []
    assert again.finished.losses == first.finished.losses
