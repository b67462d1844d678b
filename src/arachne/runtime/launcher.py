"""Start one process per rank on this machine, and end all of them when one ends badly.

On CPU the ranks are forked from a parent that imported torch, so that sixteen start in a second;
with GPUs they are spawned, since CUDA does not survive a fork. The ranks meet at a store in a
file: torch's TCP store asks the name server about each address it meets, and where that one is
slow or does not answer, ranks of one machine wait for seconds or never meet.
"""

# pyright: reportPrivateImportUsage=false
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch.distributed
from torch.distributed import FileStore

from arachne.core import errors
from arachne.core.errors import ArachneError, Interrupted, LostRankError
from arachne.core.held_signals import end_by_signals, ending_signals, signals_held_back
from arachne.core.lasting_streams import keep_standard_streams
from arachne.core.parent_watch import exit_with_parent
from arachne.runtime.hang_report import GO_ON
from arachne.runtime.lost_peer import is_of_lost_peer
from arachne.runtime.run_folder import RunFolder
from arachne.runtime.watchdog import headline_path
from arachne.runtime.world import DeviceKind, World, join_world, leave_world, resolved_device_kind

_PATIENCE_S = 5.0
"""How long ranks that are done may take to end, and the cause of a failure to become known."""

_GRACE_S = 2.0
"""How long a rank may take to end after it was asked to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """How one rank ended: its result, a user's error, or our bug.

    Attributes:
        is_consequence: Whether the rank failed because it could not reach another one.
        at_s: When it failed, on the machine's monotonic clock.
    """

    result: Any = None
    error_kind: str = ""
    message: str = ""
    is_consequence: bool = False
    at_s: float = 0.0


class _RankFailedError(Exception):
    """Which rank's failure is to be reported."""

    def __init__(self, rank: int, outcome: _Outcome) -> None:
        super().__init__(outcome.message)
        self.rank, self.outcome = rank, outcome


def run_ranks(
    world_size: int,
    target: Callable[..., Any],
    args: Sequence[Any] = (),
    *,
    device: DeviceKind = "cpu",
    timeout_s: float = 60.0,
) -> list[Any]:
    """Call `target(world, *args)` on every rank; the results, by rank.

    Raises:
        ArachneError: A rank raised it; the other ranks are ended.
        LostRankError: A rank ended without a result.
        RuntimeError: A rank met a bug; the message is its traceback.
        Interrupted: A signal came, and some rank ended by it. An error that is not of the signal,
            such as of the checkpoint that it asked for, is raised all the same.
    """
    kind = resolved_device_kind(device)
    context: Any = multiprocessing.get_context("spawn" if kind == "cuda" else "fork")
    folder = RunFolder("arachne-ranks-")
    processes: list[Any] = []
    pipes: list[multiprocessing.connection.Connection] = []
    patience_s = 0.0
    try:
        with _signals_passed_on(processes) as received:
            for rank in range(world_size):
                reader, writer = context.Pipe(duplex=False)
                process = context.Process(
                    target=_run_rank,
                    args=(
                        rank,
                        world_size,
                        folder.path,
                        writer,
                        target,
                        tuple(args),
                        kind,
                        timeout_s,
                    ),
                    name=f"rank {rank}",
                )
                with signals_held_back():
                    process.start()
                writer.close()
                processes.append(process)
                pipes.append(reader)
            if received:  # perhaps before there was a rank to tell
                raise Interrupted(received[0])
            try:
                results = _collect(processes, pipes)
            except _RankFailedError as failed:
                if received and _is_of_signals(failed.outcome, processes, received):
                    raise Interrupted(received[0]) from None
                _raise_hang(folder.path)
                _raise(failed.rank, failed.outcome)
        patience_s = _PATIENCE_S
        return results
    finally:
        _end(processes, patience_s)
        for pipe in pipes:
            pipe.close()
        folder.remove()


@contextmanager
def _signals_passed_on(processes: list[Any]) -> Iterator[list[int]]:
    """Signals to end go to the ranks, who decide; ranks that do not listen end by them.

    Gives the list of signals that have come.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def pass_on(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        for process in processes:
            if process.is_alive():
                os.kill(process.pid, number)

    numbers = ending_signals()
    before = [signal.signal(number, pass_on) for number in numbers]
    try:
        yield received
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _run_rank(
    rank: int,
    world_size: int,
    folder: Path,
    writer: multiprocessing.connection.Connection,
    target: Callable[..., Any],
    args: tuple[Any, ...],
    device: DeviceKind,
    timeout_s: float,
) -> None:
    end_by_signals(*ending_signals())
    keep_standard_streams()
    exit_with_parent(folder=folder)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(world_size),
        WORLD_SIZE=str(world_size),
    )
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        world = join_world(device, timeout_s, FileStore(f"{folder}/store", world_size), folder)
        outcome = _Outcome(result=_call(target, world, args))
        # Plain pickle: a Connection would send tensors by handles that end with this process.
        message = pickle.dumps(outcome)
    except BaseException as error:
        outcome = _failure(error)
        message = pickle.dumps(outcome)
    writer.send_bytes(message)
    writer.close()
    if outcome.error_kind:
        os._exit(1)  # the other ranks may never reach a common end
    leave_world()


def _failure(error: BaseException) -> _Outcome:
    is_ours = not isinstance(error, ArachneError)
    return _Outcome(
        error_kind="bug" if is_ours else type(error).__name__,
        message=traceback.format_exc() if is_ours else str(error),
        is_consequence=is_of_lost_peer(error),
        at_s=time.monotonic(),
    )


def _call(target: Callable[..., Any], world: World, args: tuple[Any, ...]) -> Any:
    result = target(world, *args)
    torch.distributed.barrier()
    return result


def _collect(processes: list[Any], pipes: list[multiprocessing.connection.Connection]) -> list[Any]:
    results: dict[int, Any] = {}
    rank_of_pipe = {pipe: rank for rank, pipe in enumerate(pipes)}
    failures: dict[int, _Outcome] = {}
    while rank_of_pipe and not failures:
        for pipe in multiprocessing.connection.wait(list(rank_of_pipe)):
            rank = rank_of_pipe.pop(pipe)  # pyright: ignore[reportArgumentType]
            outcome = _outcome_of(processes[rank], pipes[rank], rank)
            if outcome.error_kind:
                failures[rank] = outcome
            else:
                results[rank] = outcome.result
    if failures:
        raise _RankFailedError(*_culprit(failures, rank_of_pipe, processes, pipes))
    return [results[rank] for rank in range(len(processes))]


def _outcome_of(process: Any, pipe: multiprocessing.connection.Connection, rank: int) -> _Outcome:
    try:
        message = pipe.recv_bytes()
    except (EOFError, OSError):
        process.join(_PATIENCE_S)
        return _Outcome(
            error_kind="LostRankError",
            message=_how_it_ended(rank, process.exitcode),
            is_consequence=process.exitcode == -signal.SIGABRT,  # so gloo and NCCL end a rank
            at_s=time.monotonic(),
        )
    return pickle.loads(message)


def _how_it_ended(rank: int, exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        how = f"was ended by {signal.Signals(-exit_code).name}"
    else:
        how = f"ended with exit code {exit_code}"
    return f"rank {rank} {how} before the run was over; {GO_ON}"


def _culprit(
    failures: dict[int, _Outcome],
    waiting: dict[Any, int],
    processes: list[Any],
    pipes: list[multiprocessing.connection.Connection],
) -> tuple[int, _Outcome]:
    """The failure to report: what made the others fail.

    A rank that fails closes its connections, and ranks that wait for it fail too, perhaps sooner
    than its own words arrive: so failures that are consequences wait for one that is none.
    """
    begin_s = time.monotonic()
    while waiting:
        is_known = any(not outcome.is_consequence for outcome in failures.values())
        left_s = begin_s + (0.5 if is_known else _PATIENCE_S) - time.monotonic()
        if left_s <= 0.0:
            break
        for pipe in multiprocessing.connection.wait(list(waiting), timeout=left_s):
            rank = waiting.pop(pipe)
            outcome = _outcome_of(processes[rank], pipes[rank], rank)
            if outcome.error_kind:
                failures[rank] = outcome
    rank = min(failures, key=lambda rank: (*_precedence(failures[rank]), rank))
    return rank, failures[rank]


def _precedence(outcome: _Outcome) -> tuple[bool, int, float]:
    """Causes before consequences; a user's error, then a lost rank, then the earliest bug."""
    order = {"LostRankError": 1, "bug": 2}.get(outcome.error_kind, 0)
    return outcome.is_consequence, order, outcome.at_s if order == 2 else 0.0


def _is_of_signals(outcome: _Outcome, processes: list[Any], received: Sequence[int]) -> bool:
    """Whether a rank failed since a signal ended it, or another one that it could not reach."""
    by_signal = {code for number in received for code in (-number, 128 + number)}
    was_ended = any(process.exitcode in by_signal for process in processes)
    return outcome.is_consequence or (was_ended and outcome.error_kind == "LostRankError")


def _raise_hang(folder: Path) -> None:
    """If the watchdog ended the ranks, its words explain all that they failed with."""
    path = headline_path(folder)
    if path.exists():
        raise LostRankError(f"{path.read_text(encoding='utf-8')}; {GO_ON}") from None


def _raise(rank: int, outcome: _Outcome) -> NoReturn:
    kind = getattr(errors, outcome.error_kind, None)
    if kind is not None:
        raise kind(outcome.message) from None
    reason = outcome.message.rstrip().rpartition("\n")[2]
    if outcome.is_consequence and "timed out" in reason.lower():
        line = f"rank {rank} waited in vain for another rank ({reason}); {GO_ON}"
        raise LostRankError(line) from None
    where = f"rank {rank} on {socket.gethostname()}"
    raise RuntimeError(f"{where} failed:\n{outcome.message}") from None


def _end(processes: list[Any], patience_s: float) -> None:
    """Ranks may end by themselves, then they are asked to, then they are made to."""
    _join(processes, patience_s)
    for end in ("terminate", "kill"):
        for process in processes:
            if process.is_alive():
                getattr(process, end)()
        _join(processes, _GRACE_S)


def _join(processes: list[Any], within_s: float) -> None:
    deadline_s = time.monotonic() + within_s
    for process in processes:
        process.join(max(0.0, deadline_s - time.monotonic()))
