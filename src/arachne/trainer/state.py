"""Between a live session and a checkpoint on disk, on any world size."""

from dataclasses import dataclass
from pathlib import Path

import torch

from arachne.core.cluster import Cluster
from arachne.core.errors import CheckpointError
from arachne.core.strict_json import from_json, to_json
from arachne.runtime.sharded_optimizer import MOMENTS
from arachne.trainer.agreement import do_together
from arachne.trainer.checkpoint import (
    CheckpointReader,
    Chunk,
    TrainState,
    commit,
    newest,
    write_shard,
)
from arachne.trainer.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """How far a run is.

    Attributes:
        step: Optimizer steps done; also the next step's index.
        num_updates: Steps that changed the parameters; others had no finite gradient.
        losses: Loss of each updating step.
        cluster: What plans are made for.
    """

    step: int
    num_updates: int
    losses: tuple[float, ...]
    cluster: Cluster | None


def save(session: Session, progressed: Progressed) -> None:
    """Write and commit a checkpoint; all ranks call it together.

    Raises:
        CheckpointError: The disk is full, or cannot be written; on every rank, whoever met it.
    """
    world, everyone = session.world, session.groups.world
    chunks = [
        Chunk(
            name=piece.name,
            kind=piece.kind,  # pyright: ignore[reportArgumentType]
            offset=piece.offset,
            total=int(torch.Size(session.optimizer.shapes[piece.name]).numel()),
            values=piece.values.cpu().numpy(),
        )
        for piece in session.optimizer.pieces()
    ]

    def write() -> None:
        write_shard(session.run_dir, progressed.step, world.rank, chunks)

    def commit_on_rank_0() -> None:
        if world.rank == 0:
            commit(
                session.run_dir,
                progressed.step,
                parameters=session.optimizer.shapes,
                state=_train_state(session, progressed),
                keep=session.config.checkpoint.keep,
            )

    do_together(world, everyone, write)
    do_together(world, everyone, commit_on_rank_0)
    session.recorder.finish(step=progressed.step, planner="checkpoint")


def _train_state(session: Session, progressed: Progressed) -> TrainState:
    return TrainState(
        step=progressed.step,
        num_updates=progressed.num_updates,
        seed=session.config.run.seed,
        world_size=session.world.size,
        config_json=to_json(session.config),
        losses=progressed.losses,
        cluster_json=to_json(progressed.cluster) if progressed.cluster else None,
    )


def load_newest(session: Session) -> Progressed:
    """Take over the newest whole checkpoint; all ranks call it together.

    Raises:
        CheckpointError: There is none, or it is of another model; on every rank.
    """
    world, everyone = session.world, session.groups.world

    def find_on_rank_0() -> None:
        if world.rank == 0:
            path = newest(session.run_dir, on_skip=session.say)
            world.store.set("resume from", str(path))

    do_together(world, everyone, find_on_rank_0)
    path = Path(world.store.get("resume from").decode())
    state = do_together(world, everyone, lambda: _take_over(session, CheckpointReader(path)))
    session.optimizer.share()
    session.recorder.finish(step=state.step, planner="checkpoint")
    cluster = state.cluster_json
    return Progressed(
        step=state.step,
        num_updates=state.num_updates,
        losses=state.losses,
        cluster=from_json(cluster, Cluster, what="calibrated cluster") if cluster else None,
    )


def _take_over(session: Session, reader: CheckpointReader) -> TrainState:
    """Read what this rank owns of the optimizer's state."""
    check_same_model(reader, session.optimizer.shapes)
    state: dict[str, dict[str, torch.Tensor]] = {kind: {} for kind in ("master", *MOMENTS)}
    for name, start, stop in session.optimizer.owned_ranges():
        for kind, tensors in state.items():
            values = reader.read(name, kind, start, stop)  # pyright: ignore[reportArgumentType]
            tensors[name] = torch.from_numpy(values)
    session.optimizer.load(state, reader.state.num_updates)
    return reader.state


def check_same_model(reader: CheckpointReader, shapes: dict[str, tuple[int, ...]]) -> None:
    """Refuse a checkpoint whose parameters have other names or shapes.

    Raises:
        CheckpointError: Names the first difference.
    """
    if reader.parameters == shapes:
        return
    for name in sorted(set(shapes) | set(reader.parameters)):
        found, needed = reader.parameters.get(name), shapes.get(name)
        if found != needed:
            raise CheckpointError(
                f"the checkpoint of step {reader.state.step} has {name} with shape {found}, the "
                f"run file's model has {needed}; resume with the [model] it was trained with"
            )
