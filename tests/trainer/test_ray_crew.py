"""What becomes of the pieces of actors that end, and of signals, on a Ray that is made up."""

import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from arachne.core.bucket import Bucket
from arachne.core.clip import Clip
from arachne.core.errors import ArachneError, ConfigError, Interrupted, LostRankError
from arachne.core.ledger import LedgerRow
from arachne.data.make_arrays import Settled, Workshop
from arachne.data.prepare import Latents, Piece, Store
from arachne.trainer.preparing_ray import RayCluster, make_on_ray, ray_cluster

Piecework = Callable[[Piece], None]


class ActorDiedError(Exception):
    """As Ray's: its actor's process has ended."""


class MadeUpActor:
    """Answers as an actor does; `piecework` stands for its encoders, and may end it."""

    def __init__(self, workshop: Workshop, piecework: Piecework) -> None:
        self._store = workshop.store
        self._piecework = piecework
        self.make = SimpleNamespace(remote=self._make)

    def _make(self, batch: Sequence[Piece]) -> Callable[[], Any]:
        answer: list[Settled] = []
        try:
            for piece in batch:
                is_own = not self._store.is_settled(piece)
                if is_own:
                    self._piecework(piece)
                    self._store.cache.put(piece.key, np.zeros((2, 3), np.float32))
                answer.append(Settled(key=piece.key, is_own=is_own))
        except ArachneError as error:
            return lambda result=error: result
        except ActorDiedError as death:
            return lambda reason=death: self._raise(reason)
        return lambda: answer

    @staticmethod
    def _raise(error: Exception) -> None:
        raise error


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    fingerprints = SimpleNamespace(fingerprint="none")
    store = Store(
        cache_dir=tmp_path / "cache", fps=16.0, video_fingerprint="v", text_fingerprint="t"
    )
    return Workshop(
        root=tmp_path,
        store=store,
        video_encoder=fingerprints,  # type: ignore[arg-type]
        text_encoder=fingerprints,  # type: ignore[arg-type]
    )


def rows(count: int) -> list[LedgerRow]:
    return [
        LedgerRow(
            clip=Clip(path=f"{index}.mp4", caption=f"clip {index}"),
            status="kept",
            arithmetic="",
            reason="",
            bucket=Bucket(width=64, height=48, frames=5),
            num_tokens=12,
            content=f"{index:064}",
        )
        for index in range(count)
    ]


def make(
    monkeypatch: pytest.MonkeyPatch, workshop: Workshop, count: int, piecework: Piecework
) -> dict[str, Settled]:
    ray = SimpleNamespace(
        exceptions=SimpleNamespace(RayActorError=ActorDiedError, OutOfMemoryError=MemoryError),
        put=lambda value: value,
        remote=lambda **_: (
            lambda _: SimpleNamespace(remote=lambda shared, _: MadeUpActor(shared, piecework))
        ),
        wait=lambda refs, num_returns: (refs[:num_returns], refs[num_returns:]),
        get=lambda ref: ref(),
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    settled: dict[str, Settled] = {}
    make_on_ray(
        workshop,
        workshop.store.pieces(rows(count)),
        cluster=RayCluster(num_cpus=2, num_gpus=0),
        num_actors=1,
        device="cpu",
        on_settled=lambda event: settled.update({event.key: event}),
    )
    return settled


def end_at_latents(piece: Piece) -> None:
    if isinstance(piece, Latents):
        raise ActorDiedError("the worker died")


@pytest.mark.parametrize("count", [3, 7, 40, 100])
def test_no_clip_is_at_fault_where_all_end_their_actors(monkeypatch, workshop, count) -> None:
    """Captions that were made before do not speak for the encoder of videos."""
    with pytest.raises(LostRankError, match=r"before they have made anything \(the worker died\)"):
        make(monkeypatch, workshop, count, end_at_latents)
    assert not any((workshop.store.cache_dir / "rejected").glob("*"))


@pytest.mark.parametrize("count", [1, 3, 40, 100])
def test_a_fatal_clip_is_rejected_and_all_others_are_made(monkeypatch, workshop, count) -> None:
    def end_at_first(piece: Piece) -> None:
        if isinstance(piece, Latents) and piece.row.clip.path == "0.mp4":
            raise ActorDiedError("the worker died")

    settled = make(monkeypatch, workshop, count, end_at_first)
    pieces = workshop.store.pieces(rows(count))
    assert settled.keys() == {piece.key for piece in pieces}
    (fatal,) = [event for event in settled.values() if event.reason]
    assert fatal.reason == "preparing it ended the process 2 times"
    assert [key for key in settled if not workshop.store.cache.has(key)] == [fatal.key]


def test_captions_that_end_every_actor_end_the_work(monkeypatch, workshop) -> None:
    def end_at_captions(piece: Piece) -> None:
        if not isinstance(piece, Latents):
            raise ActorDiedError("the worker died")

    with pytest.raises(LostRankError, match="before they have made anything"):
        make(monkeypatch, workshop, 5, end_at_captions)


def test_an_error_that_every_actor_would_meet_is_raised(monkeypatch, workshop) -> None:
    def refuse(_: Piece) -> None:
        raise ConfigError("no weights; name another folder")

    with pytest.raises(ConfigError, match="no weights"):
        make(monkeypatch, workshop, 5, refuse)


def test_what_a_signal_to_end_means_stays_the_command_s(monkeypatch) -> None:
    """Also where it comes within a call of Ray, which makes a KeyboardInterrupt of all it meets."""

    def end(number: int, _: object) -> None:
        raise Interrupted(number)

    def work() -> None:
        with ray_cluster() as found:
            assert found == RayCluster(num_cpus=3, num_gpus=1)
            try:
                signal.raise_signal(signal.SIGTERM)
            except Interrupted as error:
                raise KeyboardInterrupt from error

    ray = SimpleNamespace(
        init=lambda **_: signal.signal(signal.SIGTERM, lambda *_: sys.exit(1)),
        cluster_resources=lambda: {"CPU": 3.0, "GPU": 1.0},
        shutdown=lambda: None,
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    before = signal.signal(signal.SIGTERM, end)
    try:
        with pytest.raises(Interrupted) as caught:
            work()
        assert caught.value.number == signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) is end
    finally:
        signal.signal(signal.SIGTERM, before)
