"""Prepare on a Ray cluster whose machines share the dataset, the cache and the run's folder.

Actors, one per GPU or CPU core, are handed pieces of work in batches and make them as every other
process that prepares does, with claims and guarded decoders. Arrays go straight into the cache;
through Ray comes only what became of each piece. If an actor ends, another takes its place and has
the batch piece by piece; a clip with which two of them ended is rejected.
"""

import os
import signal
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from importlib import import_module
from math import ceil
from secrets import token_hex
from types import FrameType
from typing import Any, Literal

import torch

from arachne.core.errors import ArachneError, ConfigError, LostRankError
from arachne.core.held_signals import ending_signals
from arachne.data.make_arrays import Begun, Settled, Workshop, make_arrays
from arachne.data.prepare import Latents, Piece
from arachne.trainer.encoding_room import encoding_before

_MAX_BATCH = 32
"""Pieces; a batch starts decoders of its own, which takes half a second, and progress is told by
batches."""

_BATCHES_PER_ACTOR = 4
"""At least, where there are few pieces: the last batches are then short."""

_MOST_DEATHS = 2
"""Of actors, with one clip at work."""

_MOST_SOCKET_BYTES = 107
"""Of the path of a socket, on Linux: unix(7)."""

_OWN_FOLDER = "arachne-ray-"
_RAYS_PATH_BYTES = len("/session_2030-01-01_00-00-00_000000_4194304/sockets/plasma_store.1")
"""What Ray adds to its folder's path for a socket, with the longest process number."""

_MOST_DEATHS_IN_A_ROW = 6
"""Without one of `_Crew.proofs` made in between: then no clip is at fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayCluster:
    """What the cluster has.

    Attributes:
        num_cpus: CPU cores of all machines.
        num_gpus: GPUs of all machines.
    """

    num_cpus: int
    num_gpus: int

    def device(self, kind: Literal["auto", "cpu", "cuda"]) -> Literal["cpu", "cuda"]:
        """Where encoders run; `auto` is GPUs if the cluster has any.

        Raises:
            ConfigError: `cuda` was asked for but there is no GPU.
        """
        if kind == "cuda" and not self.num_gpus:
            raise ConfigError(
                "run.device is 'cuda' but the Ray cluster has no GPU; use 'auto' or 'cpu'"
            )
        return "cuda" if kind != "cpu" and self.num_gpus else "cpu"

    def num_actors(self, device: Literal["cpu", "cuda"], asked: int | None) -> int:
        """One per GPU, or per CPU core; fewer if so many were asked for.

        Raises:
            ConfigError: More were asked for than there can be.
        """
        most = self.num_gpus if device == "cuda" else self.num_cpus
        if asked is not None and asked > most:
            what = "GPUs" if device == "cuda" else "CPU cores"
            raise ConfigError(
                f"--workers is {asked}, but the Ray cluster has {most} {what}; ask for at most that"
            )
        return asked or most

    def cpus_per_actor(self, device: Literal["cpu", "cuda"]) -> int:
        """CPU cores that an actor takes; one that has a GPU keeps as many decoders busy."""
        return max(1, self.num_cpus // self.num_gpus) if device == "cuda" else 1


@contextmanager
def ray_cluster() -> Generator[RayCluster, None, None]:
    """The cluster that RAY_ADDRESS names, or else a Ray on this machine that ends with the context.

    Ray's own listens on the loopback address alone, and reports nothing to anybody.

    Raises:
        ConfigError: Ray is not installed, or cannot be started or reached.
    """
    is_own = "RAY_ADDRESS" not in os.environ
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns of a change
    if is_own:
        # All read when Ray is imported. Without this 127.0.0.1 becomes the machine's outer address.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        # Else Ray writes a token into the home folder.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", token_hex(32))
    ray: Any = import_module("ray")
    # Ray says on standard output what went wrong, where only the outcome belongs.
    with (
        tempfile.TemporaryDirectory(prefix=_OWN_FOLDER, dir=socket_parent()) as folder,
        redirect_stdout(sys.stderr),
    ):
        options: dict[str, Any] = {"log_to_driver": False}
        if is_own:
            options |= {
                "address": "local",
                "num_cpus": len(os.sched_getaffinity(0)),
                "include_dashboard": False,
                "_node_ip_address": "127.0.0.1",
                "_temp_dir": folder,
            }
        handlers = {number: signal.getsignal(number) for number in ending_signals()}
        try:
            ray.init(**options)
        except Exception as error:  # a bare one where its processes do not start in time
            what = "be started" if is_own else f"be reached at {os.environ['RAY_ADDRESS']!r}"
            raise ConfigError(f"Ray cannot {what}: {error}") from error
        try:
            found = ray.cluster_resources()
            with _handled_by(handlers):
                yield RayCluster(
                    num_cpus=int(found.get("CPU", 0)), num_gpus=int(found.get("GPU", 0))
                )
        finally:
            ray.shutdown()


def socket_parent() -> str:
    """Where a folder of Ray's may lie: in TMPDIR, or where that is too long for its sockets in a
    folder that the system has for all users."""
    usual = tempfile.gettempdir()
    most = _MOST_SOCKET_BYTES - _RAYS_PATH_BYTES - len(f"/{_OWN_FOLDER}12345678")
    for folder in (usual, "/tmp", "/var/tmp"):
        if len(os.fsencode(folder)) <= most and os.access(folder, os.W_OK | os.X_OK):
            return folder
    return usual  # Ray then says what it cannot do


@contextmanager
def _handled_by(handlers: Mapping[signal.Signals, Any]) -> Generator[None, None, None]:
    """A context in which signals mean what they did before Ray set a handler of its own.

    What a handler raises within a call of Ray becomes a KeyboardInterrupt there; here it comes out.
    """
    raised: list[BaseException] = []

    def passing_on(handler: Callable[[int, FrameType | None], Any]) -> Callable[..., None]:
        def on_signal(number: int, frame: FrameType | None) -> None:
            try:
                handler(number, frame)
            except BaseException as error:
                raised.append(error)
                raise

        return on_signal

    for number, handler in handlers.items():
        signal.signal(number, passing_on(handler) if callable(handler) else handler)
    try:
        yield
    except KeyboardInterrupt:
        if raised:
            raise raised[0] from None
        raise
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def make_on_ray(
    workshop: Workshop,
    pieces: Sequence[Piece],
    *,
    cluster: RayCluster,
    num_actors: int,
    device: Literal["cpu", "cuda"],
    on_settled: Callable[[Settled], None],
) -> None:
    """Make what is missing, within `ray_cluster`; every piece is told as settled at least once.

    Raises:
        ArachneError: An actor raised it, or actors end before they have made anything.
        ray.exceptions.RayTaskError: An actor met a bug.
    """
    ray: Any = import_module("ray")
    maker: Any = ray.remote(
        num_cpus=cluster.cpus_per_actor(device), num_gpus=1 if device == "cuda" else 0
    )(_Maker)
    shared = ray.put(workshop)
    latents = frozenset(piece.key for piece in pieces if isinstance(piece, Latents))
    crew = _Crew(
        workshop=workshop,
        proofs=latents or frozenset(piece.key for piece in pieces),
        new_actor=lambda: maker.remote(shared, device),
        on_settled=on_settled,
        waiting=deque(_batches(pieces, num_actors)),
    )
    crew.run(num_actors)


def _batches(pieces: Sequence[Piece], num_actors: int) -> list[tuple[Piece, ...]]:
    size = min(_MAX_BATCH, ceil(len(pieces) / (num_actors * _BATCHES_PER_ACTOR)))
    return [tuple(pieces[first : first + size]) for first in range(0, len(pieces), max(1, size))]


class _Maker:
    """An actor: makes batches of pieces, one after the other."""

    def __init__(self, workshop: Workshop, device: Literal["cpu", "cuda"]) -> None:
        self._workshop = workshop
        self._device: Literal["cpu", "cuda"] = device
        if device == "cpu":
            torch.set_num_threads(1)

    def make(self, pieces: Sequence[Piece]) -> list[Settled] | ArachneError:
        """What became of each piece, or an error that no other actor would be spared."""
        settled: list[Settled] = []

        def tell(event: Begun | Settled) -> None:
            if isinstance(event, Settled):
                settled.append(event)

        try:
            with encoding_before(self._device):
                make_arrays(self._workshop, pieces, tell)
        except ArachneError as error:
            return error
        return settled


@dataclass(slots=True, kw_only=True)
class _Crew:
    """The batches, and which actor has which.

    `proofs` are the pieces that show, once made, that actors do not end whatever they do: latents,
    if any are missing. Captions are made even where each video ends its actor.
    """

    workshop: Workshop
    proofs: frozenset[str]
    new_actor: Callable[[], Any]
    on_settled: Callable[[Settled], None]
    waiting: deque[tuple[Piece, ...]]
    busy: dict[Any, tuple[Any, tuple[Piece, ...]]] = field(default_factory=dict[Any, Any])
    deaths: Counter[str] = field(default_factory=Counter[str])
    deaths_in_a_row: int = 0

    def run(self, num_actors: int) -> None:
        """Until every piece is settled."""
        ray: Any = import_module("ray")
        deaths = (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError)

        for _ in range(min(num_actors, len(self.waiting))):
            self._give_batch(self.new_actor())
        while self.busy:
            (done, *_), _ = ray.wait(list(self.busy), num_returns=1)
            actor, batch = self.busy.pop(done)
            try:
                self._hear(ray.get(done))
            except deaths as error:
                self._mourn(batch, str(error))
                actor = self.new_actor()
            self._give_batch(actor)

    def _give_batch(self, actor: Any) -> None:
        if self.waiting:
            batch = self.waiting.popleft()
            self.busy[actor.make.remote(batch)] = (actor, batch)

    def _hear(self, answer: list[Settled] | ArachneError) -> None:
        if isinstance(answer, ArachneError):
            raise answer
        if any(event.is_own and not event.reason and event.key in self.proofs for event in answer):
            self.deaths_in_a_row = 0
        for event in answer:
            self.on_settled(event)

    def _mourn(self, batch: tuple[Piece, ...], how: str) -> None:
        """Try the batch of an actor that ended again, piece by piece; reject a clip of many deaths.

        Raises:
            LostRankError: It is not a clip that ends them.
        """
        self.deaths_in_a_row += 1
        key = batch[0].key
        if len(batch) == 1:
            self.deaths[key] += 1
        is_at_fault = isinstance(batch[0], Latents) and self.deaths[key] >= _MOST_DEATHS
        if self.deaths_in_a_row >= _MOST_DEATHS_IN_A_ROW:
            raise LostRankError(
                f"Ray's workers end before they have made anything ({how.splitlines()[0]}); free "
                "memory or lower --workers, and prepare again to go on"
            )
        if not is_at_fault:
            self.waiting.extend((piece,) for piece in batch)
            return
        reason = f"preparing it ended the process {_MOST_DEATHS} times"
        self.workshop.store.rejections.add(key, reason)
        self.on_settled(Settled(key=key, is_own=True, reason=reason))
