"""Saving and loading by all ranks; what fails on one rank fails on all, at once."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from arachne.core.errors import ArachneError, CheckpointError
from arachne.cost.cluster_files import load_cluster
from arachne.runtime.launcher import run_ranks
from arachne.runtime.world import World
from arachne.trainer import saver, state
from arachne.trainer.agreement import do_together
from arachne.trainer.checkpoint_reader import CheckpointReader, newest, verified
from arachne.trainer.config import RunConfig
from arachne.trainer.saver import CheckpointSaver
from arachne.trainer.session import Session
from arachne.trainer.state import Progressed, load_newest, train_state
from tests.trainer.tiny_runs import tiny_config, tiny_session, with_manifest


@pytest.fixture
def config(clips, tmp_path) -> RunConfig:
    return with_manifest(tiny_config(clips, tmp_path / "run"))


def progressed_to(step: int, world_size: int = 2) -> Progressed:
    return Progressed(
        step=step, num_updates=2, losses=(1.5, 0.5), cluster=load_cluster(f"cpux{world_size}")
    )


def without_updates(step: int) -> Progressed:
    return replace(progressed_to(step), num_updates=0, losses=())


def save(session: Session, progressed: Progressed) -> None:
    with CheckpointSaver(session) as checkpoints:
        checkpoints.begin(train_state(session, progressed))
        checkpoints.finish()


def all_pieces(session: Session) -> dict[tuple[str, str, int], torch.Tensor]:
    """Every element that this rank owns, by parameter, kind and place."""
    return {
        (piece.name, piece.kind, piece.offset + index): value
        for piece in session.optimizer.pieces()
        for index, value in enumerate(piece.values.tolist())
    }


def train_a_little_and_save(world: World, config: RunConfig) -> tuple[dict[Any, Any], Any]:
    with tiny_session(world, config) as (session, _):
        for _ in range(2):
            session.model.module.proj_out.weight.sum().backward()
            session.optimizer.reduce()
            session.optimizer.step(lr=0.01)
            session.optimizer.share()
            session.optimizer.clear_gradients()
        session.recorder.finish(step=0, planner="")
        save(session, progressed_to(7))
        assert not session.recorder.finish(step=0, planner="").events
        parameters = [p.detach().clone() for p in session.model.module.parameters()]
        return all_pieces(session), parameters


def load_and_compare(world: World, config: RunConfig) -> tuple[dict[Any, Any], Any, Progressed]:
    with tiny_session(world, config) as (session, _):
        progressed = load_newest(session)
        assert not session.recorder.finish(step=0, planner="").events
        return all_pieces(session), list(session.model.module.parameters()), progressed


@pytest.mark.distributed
def test_what_two_ranks_saved_any_world_loads_bit_for_bit(config):
    saved = run_ranks(2, train_a_little_and_save, (config,))
    owned = saved[0][0] | saved[1][0]
    assert any(kind == "exp_avg" and value for (_, kind, _), value in owned.items())
    for world_size in (1, 2, 3):
        loaded = run_ranks(world_size, load_and_compare, (config,))
        merged: dict[Any, Any] = {}
        for pieces, parameters, progressed in loaded:
            merged |= pieces
            assert all(torch.equal(a, b) for a, b in zip(parameters, saved[0][1], strict=True))
            assert progressed == progressed_to(7)
        assert merged == owned


def failing_on_one_rank(world: World, config: RunConfig, what: str, culprit: int, error: Any):
    """The error that `save` or `load_newest` raises on this rank, and after how many seconds."""
    module = state if what == "newest" else saver
    real = getattr(module, what)

    def fails(*args: Any, **options: Any) -> Any:
        if world.rank == culprit:
            raise error
        return real(*args, **options)

    with tiny_session(world, config) as (session, _):
        setattr(module, what, fails)
        begin_s = time.monotonic()
        try:
            load_newest(session) if what == "newest" else save(session, without_updates(2))
        except ArachneError as found:
            seconds = time.monotonic() - begin_s
            setattr(module, what, real)
            save(session, without_updates(3))  # the ranks are still in step
            return type(found).__name__, str(found), seconds
    return "nothing", "", 0.0


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("what", "culprit", "error"),
    [
        ("write_shard", 1, CheckpointError("the disk is full")),
        ("write_shard", 2, OSError(28, "No space left on device")),
        ("commit", 0, CheckpointError("rank 0 cannot rename")),
        ("newest", 0, CheckpointError("no checkpoint")),
    ],
)
def test_what_fails_on_one_rank_is_raised_on_all_at_once(config, what, culprit, error):
    results = run_ranks(3, failing_on_one_rank, (config, what, culprit, error), timeout_s=30.0)
    for kind, message, seconds in results:
        assert kind == "CheckpointError"
        assert (error.strerror if isinstance(error, OSError) else str(error)) in message
        assert seconds < 10.0
    run_dir = Path(config.run.dir)
    assert newest(run_dir, on_skip=print).name == "step-000003"
    assert len(verified(newest(run_dir, on_skip=print)).shards) == 3
    assert not list((run_dir / "checkpoints").glob("*.partial"))


def test_a_failed_commit_leaves_the_older_checkpoint_the_newest(config):
    run_ranks(1, failing_on_one_rank, (config, "commit", 0, CheckpointError("x")))
    path = newest(Path(config.run.dir), on_skip=print)
    assert CheckpointReader(path).state.step == 3


@pytest.mark.distributed
def test_a_damaged_best_json_is_found_on_resuming_and_not_when_it_is_needed(config):
    run_ranks(1, failing_on_one_rank, (config, "commit", 0, CheckpointError("x")))
    (Path(config.run.dir) / "checkpoints" / "best.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"names the best checkpoint, cannot be read"):
        run_ranks(1, load_and_compare, (config,))


@pytest.mark.distributed
def test_resuming_from_nothing_is_one_error_on_all_ranks(config):
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        run_ranks(2, load_and_compare, (config,))


def _two_failures(world: World, config: RunConfig) -> list[str]:
    messages: list[str] = []
    with tiny_session(world, config) as (session, _):
        for culprits in [(2,), (1, 2), (0,), ()]:

            def action(culprits: tuple[int, ...] = culprits) -> None:
                if world.rank in culprits:
                    raise CheckpointError(f"rank {world.rank} of {culprits}: a failure")

            try:
                do_together(world, session.groups.world, action)
            except CheckpointError as error:
                messages.append(str(error))
            else:
                messages.append("fine")
    return messages


@pytest.mark.distributed
def test_the_lowest_rank_that_failed_is_heard_again_and_again(config):
    assert (
        run_ranks(3, _two_failures, (config,))
        == [
            [
                "rank 2 of (2,): a failure",
                "rank 1 of (1, 2): a failure",
                "rank 0 of (0,): a failure",
                "fine",
            ]
        ]
        * 3
    )
