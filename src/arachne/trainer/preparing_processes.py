"""Prepare on several processes of this machine; one that is killed costs at most its clip.

Each process claims pieces of work in the cache, as all others on it do, and tells what it begins
and settles. If one ends, another takes its place. A clip with which two of them ended is rejected.
"""

# pyright: reportPrivateImportUsage=false
import multiprocessing
import multiprocessing.connection
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from arachne.core import errors
from arachne.core.errors import ArachneError, LostRankError
from arachne.core.held_signals import end_by_signals, signals_held_back
from arachne.core.parent_watch import exit_with_parent
from arachne.data.make_arrays import Begun, Settled, Workshop, make_arrays
from arachne.data.prepare import Latents, Piece
from arachne.trainer.encoding_room import encoding_before

_MOST_DEATHS = 2
"""Of processes, with one clip at work or with none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    """An error of a process that no other process would be spared."""

    kind: str
    message: str


@dataclass(slots=True, kw_only=True)
class _Worker:
    """A process, and what it has begun."""

    number: int
    process: Any
    reader: "multiprocessing.connection.Connection[Any, Any]"
    begun: set[str] = field(default_factory=set[str])


def make_on_processes(
    workshop: Workshop,
    pieces: Sequence[Piece],
    *,
    num_processes: int,
    device: Literal["cpu", "cuda"],
    on_settled: Callable[[Settled], None],
) -> None:
    """Make what is missing; every piece is told as settled at least once.

    Raises:
        ArachneError: A process raised it or ran out of memory, or processes end before they have
            done anything.
        RuntimeError: A process met a bug; the message is its traceback.
    """
    crew = _Crew(workshop=workshop, pieces=pieces, device=device, on_settled=on_settled)
    try:
        for number in range(num_processes):
            crew.start(number, workshop.num_decoders)
        while crew.workers:
            crew.listen()
    finally:
        crew.end()


@dataclass(slots=True, kw_only=True)
class _Crew:
    """All processes at work; what the parent knows of them."""

    workshop: Workshop
    pieces: Sequence[Piece]
    device: Literal["cpu", "cuda"]
    on_settled: Callable[[Settled], None]
    workers: list[_Worker] = field(default_factory=list[_Worker])
    deaths: Counter[str] = field(default_factory=Counter[str])

    def start(self, number: int, num_decoders: int) -> None:
        """Add a process; it is forked where there is no GPU, so that it starts in no time."""
        context: Any = multiprocessing.get_context("spawn" if self.device == "cuda" else "fork")
        reader, writer = context.Pipe(duplex=False)
        process = context.Process(
            target=_work,
            args=(
                number,
                writer,
                replace(self.workshop, num_decoders=num_decoders),
                tuple(self.pieces),
                self.device,
            ),
            name=f"preparing {number}",
        )
        with signals_held_back():
            process.start()
        writer.close()
        self.workers.append(_Worker(number=number, process=process, reader=reader))

    def listen(self) -> None:
        """Take what processes say until one of them has said something."""
        worker_of = {worker.reader: worker for worker in self.workers}
        for reader in multiprocessing.connection.wait(list(worker_of)):
            worker = worker_of[reader]  # pyright: ignore[reportArgumentType]
            try:
                self._hear(worker, worker.reader.recv())
            except (EOFError, OSError):
                self._replace(worker)

    def end(self) -> None:
        """End what still runs."""
        for worker in self.workers:
            worker.process.terminate()
        for worker in self.workers:
            worker.process.join()
            worker.reader.close()

    def _hear(self, worker: _Worker, event: Begun | Settled | _Failure | None) -> None:
        match event:
            case Begun():
                worker.begun.add(event.key)
            case Settled():
                worker.begun.discard(event.key)
                if event.is_own:
                    del self.deaths[""]
                self.on_settled(event)
            case _Failure():
                raise getattr(errors, event.kind, RuntimeError)(event.message)
            case None:
                self._bury(worker)

    def _bury(self, worker: _Worker) -> str:
        """Forget a process that has ended; how it did."""
        worker.process.join()
        worker.reader.close()
        self.workers.remove(worker)
        code: int = worker.process.exitcode
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def _replace(self, worker: _Worker) -> None:
        """Count a death, and start another process; with one decoder, to know the clip next time.

        Raises:
            LostRankError: It is not a clip that ends them.
        """
        how = self._bury(worker)
        for key in worker.begun or {""}:
            self.deaths[key] += 1
            if self.deaths[key] < _MOST_DEATHS:
                continue
            if key not in {piece.key for piece in self.pieces if isinstance(piece, Latents)}:
                raise LostRankError(
                    f"processes that prepare end before they have made anything ({how}); free "
                    "memory or lower --workers, and prepare again to go on"
                )
            reason = f"preparing it ended the process {_MOST_DEATHS} times ({how})"
            self.workshop.store.rejections.add(key, reason)
            self.on_settled(Settled(key=key, is_own=True, reason=reason))
        self.start(worker.number, 1)


def _work(
    number: int,
    writer: "multiprocessing.connection.Connection[Any, Any]",
    workshop: Workshop,
    pieces: Sequence[Piece],
    device: Literal["cpu", "cuda"],
) -> None:
    end_by_signals(signal.SIGTERM)  # which the parent sends; what Ctrl-C means it decides
    exit_with_parent()
    try:
        if device == "cuda":
            torch.cuda.set_device(number % torch.cuda.device_count())
        else:
            torch.set_num_threads(1)
        with encoding_before(device):
            make_arrays(workshop, pieces, writer.send)
        writer.send(None)
    except ArachneError as error:
        writer.send(_Failure(kind=type(error).__name__, message=str(error)))
    except Exception:
        writer.send(_Failure(kind="RuntimeError", message=traceback.format_exc()))
