"""Start one process per rank on this machine, and end all of them when one ends badly.

On CPU the ranks are forked from a parent that imported torch, so that sixteen start in a second;
with GPUs they are spawned, since CUDA does not survive a fork. The parent serves the store that
ranks meet at, as torchrun's agent does, so that no port has to be guessed.
"""

# pyright: reportPrivateImportUsage=false
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch.distributed
from torch.distributed import TCPStore

from arachne.core import errors
from arachne.core.errors import ArachneError
from arachne.runtime.parent_watch import exit_with_parent
from arachne.runtime.world import DeviceKind, World, join_world, leave_world, resolved_device_kind

_GRACE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """How one rank ended: its result, a user's error, or our bug."""

    result: Any = None
    error_kind: str = ""
    message: str = ""


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
    """
    kind = resolved_device_kind(device)
    context: Any = multiprocessing.get_context("spawn" if kind == "cuda" else "fork")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes: list[Any] = []
    pipes: list[multiprocessing.connection.Connection] = []
    try:
        for rank in range(world_size):
            reader, writer = context.Pipe(duplex=False)
            process = context.Process(
                target=_run_rank,
                args=(rank, world_size, store.port, writer, target, tuple(args), kind, timeout_s),
                name=f"rank {rank}",
            )
            process.start()
            writer.close()
            processes.append(process)
            pipes.append(reader)
        with _signals_passed_on(processes):
            return _collect(processes, pipes)
    finally:
        _end(processes)
        for pipe in pipes:
            pipe.close()


@contextmanager
def _signals_passed_on(processes: list[Any]) -> Iterator[None]:
    """SIGINT and SIGTERM go to the ranks, who decide; ranks that do not listen end by them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def pass_on(number: int, _frame: FrameType | None) -> None:
        for process in processes:
            if process.is_alive():
                os.kill(process.pid, number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, pass_on) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _run_rank(
    rank: int,
    world_size: int,
    port: int,
    writer: multiprocessing.connection.Connection,
    target: Callable[..., Any],
    args: tuple[Any, ...],
    device: DeviceKind,
    timeout_s: float,
) -> None:
    exit_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
    )
    try:
        world = join_world(device, timeout_s)
        outcome = _Outcome(result=_call(target, world, args))
    except ArachneError as error:
        outcome = _Outcome(error_kind=type(error).__name__, message=str(error))
    except BaseException:
        outcome = _Outcome(error_kind="bug", message=traceback.format_exc())
    writer.send(outcome)
    writer.close()
    if outcome.error_kind:
        os._exit(1)  # the other ranks may never reach a common end
    leave_world()


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
        _raise(*_culprit(failures, rank_of_pipe, processes, pipes))
    return [results[rank] for rank in range(len(processes))]


def _outcome_of(process: Any, pipe: multiprocessing.connection.Connection, rank: int) -> _Outcome:
    try:
        return pipe.recv()
    except (EOFError, OSError):
        process.join(_GRACE_S)
        return _Outcome(error_kind="LostRankError", message=_how_it_ended(rank, process.exitcode))


def _how_it_ended(rank: int, exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        how = f"was ended by {signal.Signals(-exit_code).name}"
    else:
        how = f"ended with exit code {exit_code}"
    return (
        f"rank {rank} {how} before the run was over; start again with --resume to go on "
        "from the newest checkpoint"
    )


def _culprit(
    failures: dict[int, _Outcome],
    waiting: dict[Any, int],
    processes: list[Any],
    pipes: list[multiprocessing.connection.Connection],
) -> tuple[int, _Outcome]:
    """The failure to report: a lost or refused rank makes others fail, so it goes first."""
    deadline = time.monotonic() + 1.0
    while waiting and time.monotonic() < deadline:
        for pipe in multiprocessing.connection.wait(list(waiting), timeout=0.1):
            rank = waiting.pop(pipe)
            outcome = _outcome_of(processes[rank], pipes[rank], rank)
            if outcome.error_kind:
                failures[rank] = outcome
    order = {"LostRankError": 1, "bug": 2}
    rank = min(failures, key=lambda rank: (order.get(failures[rank].error_kind, 0), rank))
    return rank, failures[rank]


def _raise(rank: int, outcome: _Outcome) -> None:
    kind = getattr(errors, outcome.error_kind, None)
    if kind is not None:
        raise kind(outcome.message)
    raise RuntimeError(f"rank {rank} on {socket.gethostname()} failed:\n{outcome.message}")


def _end(processes: list[Any]) -> None:
    for process in processes:
        process.join(0.0 if process.exitcode is not None else 0.5)
    for end in ("terminate", "kill"):
        alive = [process for process in processes if process.is_alive()]
        for process in alive:
            getattr(process, end)()
        deadline = time.monotonic() + _GRACE_S
        for process in alive:
            process.join(max(0.0, deadline - time.monotonic()))
