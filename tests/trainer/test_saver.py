"""Checkpoints in the background: what training waits for, and what happens when they fail."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from arachne.core.errors import CheckpointError
from arachne.runtime import collectives
from arachne.runtime.launcher import run_ranks
from arachne.runtime.world import World
from arachne.trainer import checkpoint, saver
from arachne.trainer.checkpoint_reader import CheckpointReader, newest
from arachne.trainer.config import RunConfig
from arachne.trainer.saver import CheckpointSaver
from arachne.trainer.session import Session
from arachne.trainer.state import Progressed, train_state
from tests.trainer.tiny_runs import changed, tiny_config, tiny_session, with_manifest


@pytest.fixture
def config(clips, tmp_path) -> RunConfig:
    return with_manifest(tiny_config(clips, tmp_path / "run"))


def begin(checkpoints: CheckpointSaver, session: Session, step: int) -> None:
    progressed = Progressed(step=step, num_updates=0, losses=(), cluster=None)
    checkpoints.begin(train_state(session, progressed))


def committed(config: RunConfig) -> list[str]:
    return sorted(path.name for path in (Path(config.run.dir) / "checkpoints").iterdir())


def save_and_train_on(world: World, config: RunConfig) -> list[tuple[str, list[str]]]:
    """Rank 0 has written at once, the last rank only when it is let go."""
    may_write = threading.Event()
    write_shard, all_reduce_max = saver.write_shard, collectives.all_reduce_max

    def slow_write(*args: Any) -> Any:
        if world.rank == world.size - 1:
            assert may_write.wait(20.0)
        return write_shard(*args)

    def from_the_main_thread(*args: Any) -> Any:
        assert threading.current_thread() is threading.main_thread()
        return all_reduce_max(*args)

    saver.write_shard = slow_write  # pyright: ignore[reportPrivateLocalImportUsage]
    collectives.all_reduce_max = from_the_main_thread
    seen: list[tuple[str, list[str]]] = []
    with tiny_session(world, config) as (session, _), CheckpointSaver(session) as checkpoints:

        def look(when: str) -> None:
            collectives.all_reduce_max(torch.zeros(1), session.groups.world)
            seen.append((when, committed(config)))

        begin(checkpoints, session, 4)
        for parameters in session.optimizer.pieces():
            parameters.values.fill_(7.0)  # as the next step does
        for _ in range(3):
            checkpoints.advance()
        time.sleep(0.1)
        checkpoints.advance()
        look("while a rank writes")
        may_write.set()
        session.recorder.finish(step=0, planner="")
        begin(checkpoints, session, 5)
        seen.append(("once the second save could begin", committed(config)))
        checkpoints.finish()
        assert not session.recorder.finish(step=0, planner="").events
        look("at the end")
        assert len(checkpoints.stalls_s) == 2
    return seen


@pytest.mark.distributed
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_checkpoint_is_what_training_was_when_it_began_and_is_committed_when_all_have_written(
    config, world_size
):
    for seen in run_ranks(world_size, save_and_train_on, (config,)):
        (_, first), (_, second), (_, last) = seen
        assert "step-000004" not in first
        assert "step-000004" in second
        assert last == ["step-000004", "step-000005"]
    root = Path(config.run.dir) / "checkpoints"
    before, after = (CheckpointReader(root / name) for name in ("step-000004", "step-000005"))
    for name, shape in before.parameters.items():
        size = int(torch.Size(shape).numel())
        assert not (before.read(name, "master", 0, size) == 7.0).any()
        assert (after.read(name, "master", 0, size) == 7.0).all()


def failing_once(world: World, config: RunConfig, what: str) -> tuple[list[str], str]:
    """Steps 1, 2 and 3 are saved, and the second save fails on one rank."""
    real = getattr(saver, what)
    culprit = 0 if what == "commit" else world.size - 1
    step = 0

    def fails(*args: Any, **options: Any) -> Any:
        if step == 2 and world.rank == culprit:
            raise OSError(28, "No space left on device")
        return real(*args, **options)

    setattr(saver, what, fails)
    message = ""
    with tiny_session(world, config) as (opened, heard), CheckpointSaver(opened) as checkpoints:
        try:
            for step in (1, 2, 3):
                begin(checkpoints, opened, step)
                while checkpoints.is_saving:
                    time.sleep(0.01)
                    checkpoints.advance()
            checkpoints.finish()
        except CheckpointError as error:
            message = str(error)
        collectives.all_reduce_max(torch.zeros(1), opened.groups.world)
    return heard.said, message


@pytest.mark.distributed
@pytest.mark.parametrize("what", ["write_shard", "commit", "check_free_space"])
@pytest.mark.parametrize("on_error", ["stop", "continue"])
def test_a_save_that_fails_ends_the_run_or_is_said_and_the_older_one_stays(config, what, on_error):
    own = changed(config, "checkpoint", on_error=on_error)
    results = run_ranks(2, failing_once, (own, what))
    for said, message in results:
        lines = [line for line in said if "training goes on" in line]
        if on_error == "stop":
            assert "No space left on device" in message
            assert not lines
        else:
            assert message == ""
            assert len(lines) == 1
            assert "No space left on device" in lines[0]
    steps = ["step-000001"] if on_error == "stop" else ["step-000001", "step-000003"]
    assert committed(own) == steps, "what was half-written is gone"
    skipped: list[str] = []
    assert newest(Path(own.run.dir), skipped.append).name == steps[-1]
    assert not skipped


def last_one_fails(world: World, config: RunConfig) -> str:
    def fails(*args: Any) -> Any:
        raise CheckpointError("the disk is full")

    saver.write_shard = fails  # pyright: ignore[reportPrivateLocalImportUsage]
    with tiny_session(world, config) as (session, _), CheckpointSaver(session) as checkpoints:
        begin(checkpoints, session, 1)
        try:
            checkpoints.finish()
        except CheckpointError as error:
            return str(error)
    return ""


def test_a_run_that_has_not_saved_its_last_state_fails_whatever_the_setting(config):
    own = changed(config, "checkpoint", on_error="continue")
    assert run_ranks(1, last_one_fails, (own,)) == ["the disk is full"]


def test_a_disk_without_room_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    usage = checkpoint.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(
        checkpoint.shutil, "disk_usage", lambda path: usage._replace(free=2 * 10**9)
    )
    checkpoint.check_free_space(tmp_path, 2 * 10**9)
    refused = r"has 2.* free, a checkpoint needs .*; "
    with pytest.raises(CheckpointError, match=refused + r"there is no earlier .* start again"):
        checkpoint.check_free_space(tmp_path, 2 * 10**9 + 1)
    (tmp_path / "checkpoints" / "step-000001").mkdir()
    with pytest.raises(CheckpointError, match=refused + r".* untouched; .* --prune --keep 1` del"):
        checkpoint.check_free_space(tmp_path, 2 * 10**9 + 1)


def owned_bytes(world: World, config: RunConfig) -> tuple[int, list[int]]:
    """Bytes of what this rank owns, and what the space of its saves was checked for."""
    asked: list[int] = []
    saver.check_free_space = lambda _, needed: asked.append(needed)
    with tiny_session(world, config) as (session, _), CheckpointSaver(session) as checkpoints:
        begin(checkpoints, session, 1)
        checkpoints.finish()
        return sum(piece.values.nbytes for piece in session.optimizer.pieces()), asked


@pytest.mark.distributed
def test_space_is_asked_for_all_that_all_ranks_own_even_if_some_own_more(config):
    results = run_ranks(3, owned_bytes, (changed(config, "optimizer", name="muon"),))
    owned = [num_bytes for num_bytes, _ in results]
    assert len(set(owned)) > 1, "whole matrices do not divide evenly"
    assert [asked for _, asked in results] == [[sum(owned)]] * 3
