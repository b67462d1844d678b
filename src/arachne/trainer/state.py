"""Between a live session and a checkpoint on disk, on any world size."""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from arachne.core.cluster import Cluster
from arachne.core.errors import CheckpointError
from arachne.core.strict_json import from_json, to_json
from arachne.runtime.sharded_optimizer import MOMENTS
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
        CheckpointError: The disk is full, or cannot be written.
    """
    world = session.world
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
    write_shard(session.run_dir, progressed.step, world.rank, chunks)
    dist.barrier()
    if world.rank == 0:
        commit(
            session.run_dir,
            progressed.step,
            parameters=session.optimizer.shapes,
            state=TrainState(
                step=progressed.step,
                num_updates=progressed.num_updates,
                seed=session.config.run.seed,
                world_size=world.size,
                config_json=to_json(session.config),
                losses=progressed.losses,
                cluster_json=to_json(progressed.cluster) if progressed.cluster else None,
            ),
            keep=session.config.checkpoint.keep,
        )
    dist.barrier()


def load_newest(session: Session) -> Progressed:
    """Take over the newest whole checkpoint; all ranks call it together.

    Raises:
        CheckpointError: There is none, or it is of another model.
    """
    world = session.world
    if world.rank == 0:
        path = newest(session.run_dir, on_skip=session.say)
        world.store.set("resume from", str(path))
    reader = CheckpointReader(Path(world.store.get("resume from").decode()))
    check_same_model(reader, session.optimizer.shapes)
    state: dict[str, dict[str, torch.Tensor]] = {kind: {} for kind in ("master", *MOMENTS)}
    for name, start, stop in session.optimizer.owned_ranges():
        for kind, tensors in state.items():
            values = reader.read(name, kind, start, stop)  # pyright: ignore[reportArgumentType]
            tensors[name] = torch.from_numpy(values)
    session.optimizer.load(state, reader.state.num_updates)
    session.optimizer.share()
    session.recorder.finish(step=reader.state.step, planner="")
    cluster = reader.state.cluster_json
    return Progressed(
        step=reader.state.step,
        num_updates=reader.state.num_updates,
        losses=reader.state.losses,
        cluster=from_json(cluster, Cluster, what="calibrated cluster") if cluster else None,
    )


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
