"""Checkpoints that are written while training goes on.

At a save each rank copies what it owns into host buffers, and that is all that training waits for.
A thread of each rank writes, hashes and syncs its shard. At the following step boundaries the ranks
ask each other whether all shards are on the disk; once they are, a thread of rank 0 commits the
checkpoint, and they ask each other whether it has. Threads issue no collective and use no store:
all questions are asked by the main threads, in one order.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from arachne.core.errors import CheckpointError
from arachne.trainer.agreement import all_agree, do_together, total
from arachne.trainer.checkpoint import (
    check_free_space,
    commit,
    forget_partial,
    keep_of,
    write_shard,
)
from arachne.trainer.checkpoint_files import Chunk, TrainState
from arachne.trainer.session import Session


@dataclass(slots=True)
class _Save:
    """A save on its way: first the shard, then the commit is the work of this rank's thread."""

    state: TrainState
    work: Future[None]
    is_committing: bool = False


class CheckpointSaver:
    """Writes one checkpoint at a time, in the background; every rank has one.

    All ranks call each method together. Where `checkpoint.on_error` is `continue`, a save that
    fails is said, and only `finish` raises it, if no later one succeeded.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        # Before the first step: memory that is touched for the first time is slow.
        self._buffers = {
            (piece.name, piece.kind, piece.offset): _host_buffer(piece.values)
            for piece in session.optimizer.pieces()
        }
        self._save: _Save | None = None
        self._failure: CheckpointError | None = None
        self.stalls_s: list[float] = []
        """How long training waited for each save to begin, on this rank."""

    @property
    def is_saving(self) -> bool:
        """Whether a checkpoint is on its way; the same on every rank."""
        return self._save is not None

    def begin(self, state: TrainState) -> None:
        """Start a checkpoint of the optimizer's present state; waits for an earlier one.

        Raises:
            CheckpointError: The disk has no room for it, or an earlier one failed; on every rank.
        """
        begin_s = time.perf_counter()
        self._wait()
        self._session.recorder.progress.change("checkpoint")
        world, everyone = self._session.world, self._session.groups.world
        try:
            mine = sum(piece.values.nbytes for piece in self._session.optimizer.pieces())
            # Of all ranks: where matrices stay whole, some own more than others.
            needed_bytes = total(world, everyone, mine)
            do_together(
                world, everyone, lambda: check_free_space(self._session.run_dir, needed_bytes)
            )
        except CheckpointError as error:
            self._fail(error)
        else:
            chunks = self._copied()
            self._save = _Save(
                state=state, work=self._thread.submit(self._write, state.step, chunks)
            )
        self._settle_events(state.step)
        self.stalls_s.append(time.perf_counter() - begin_s)

    def advance(self) -> None:
        """Go on with the save that is on its way, if its present part is over; never waits.

        Raises:
            CheckpointError: It failed; on every rank, whoever met it.
        """
        if self._save is not None:
            step = self._save.state.step
            self._look(self._save)
            self._settle_events(step)

    def finish(self) -> None:
        """Wait until the checkpoint that was begun last is committed.

        Raises:
            CheckpointError: It failed, now or before; on every rank.
        """
        self._wait()
        if self._failure is not None:
            raise self._failure

    def _wait(self) -> None:
        while self._save is not None:
            self._session.recorder.progress.change("checkpoint")
            self._save.work.exception()  # waits; what was raised is told to all ranks below
            self.advance()

    def _look(self, save: _Save) -> None:
        world, everyone = self._session.world, self._session.groups.world
        is_over = save.work.done()
        try:
            do_together(world, everyone, lambda: save.work.result() if is_over else None)
        except CheckpointError as error:
            self._give_up(save, error)
            return
        if not all_agree(world, everyone, is_over):
            return
        if save.is_committing:
            self._save, self._failure = None, None
        else:
            save.is_committing = True
            save.work = self._thread.submit(self._commit, save.state)

    def _give_up(self, save: _Save, error: CheckpointError) -> None:
        """Give back the disk space of a save that failed, once no rank writes any more."""
        self._save = None
        save.work.exception()
        world = self._session.world
        all_agree(world, self._session.groups.world, True)
        if world.rank == 0:
            forget_partial(self._session.run_dir, save.state.step)
        self._fail(error)

    def _fail(self, error: CheckpointError) -> None:
        self._failure = error
        if self._session.config.checkpoint.on_error == "stop":
            raise error
        self._session.say(f"no checkpoint was written, training goes on: {error}")

    def _copied(self) -> list[Chunk]:
        """What this rank owns, in host memory that stays with the saver."""
        chunks: list[Chunk] = []
        for piece in self._session.optimizer.pieces():
            key = (piece.name, piece.kind, piece.offset)
            self._buffers[key].copy_(piece.values)
            total = int(np.prod(self._session.optimizer.shapes[piece.name], dtype=np.int64))
            chunks.append(
                Chunk(
                    name=piece.name,
                    kind=piece.kind,
                    offset=piece.offset,
                    total=total,
                    values=self._buffers[key].numpy(),
                )
            )
        return chunks

    def _write(self, step: int, chunks: list[Chunk]) -> None:
        write_shard(self._session.run_dir, step, self._session.world.rank, chunks)

    def _commit(self, state: TrainState) -> None:
        if self._session.world.rank == 0:
            commit(
                self._session.run_dir,
                state.step,
                parameters=self._session.optimizer.shapes,
                state=state,
                keep=keep_of(self._session.config.checkpoint),
            )

    def _settle_events(self, step: int) -> None:
        """Meetings about a checkpoint belong to no step's log."""
        self._session.recorder.finish(step=step, planner="checkpoint")

    def __enter__(self) -> "CheckpointSaver":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the thread once it has written what it writes; ranks need not call this together."""
        self._thread.shutdown(wait=True)


def _host_buffer(values: Tensor) -> Tensor:
    """Host memory for these values, in which all pages are there already."""
    buffer = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
    return buffer.zero_()
