"""Preparing on several processes: whatever becomes of one of them, the rest is made."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from arachne.core.errors import ConfigError, LostRankError, RankMemoryError
from arachne.core.families import WAN
from arachne.core.ledger import Ledger
from arachne.data.inspect import inspect_dataset
from arachne.data.make_arrays import Settled, Workshop
from arachne.models.encoders import text_encoder_named, video_encoder_named
from arachne.trainer.preparation import workshop_of
from arachne.trainer.preparing_processes import make_on_processes
from tests.trainer.tiny_runs import NUM_CLIPS, tiny_config


@dataclass(frozen=True)
class Trapped:
    """An encoder that does something to the process that uses it."""

    fingerprint: str
    trap: Callable[[Any], None]

    def encode(self, what: Any, /) -> Any:
        self.trap(what)
        return np.zeros((2, 3), np.float32)


@pytest.fixture
def ledger(own_clips) -> Ledger:
    data = tiny_config(own_clips, Path("unused")).data
    return inspect_dataset(own_clips, data.shape_rules, WAN.geometry, "error", num_workers=1)


@pytest.fixture
def workshop(own_clips, tmp_path) -> Workshop:
    config = tiny_config(own_clips, tmp_path / "run")
    return workshop_of(config, video_encoder_named("dct"), text_encoder_named("hashed", 4))


def with_video_trap(workshop: Workshop, trap: Callable[[np.ndarray], None]) -> Workshop:
    return replace(
        workshop,
        store=replace(workshop.store, video_fingerprint="trap"),
        video_encoder=Trapped("trap", trap),
    )


def make(workshop: Workshop, ledger: Ledger, num_processes: int = 2) -> dict[str, Settled]:
    settled: dict[str, Settled] = {}

    def on_settled(event: Settled) -> None:
        if event.is_own or event.key not in settled:
            settled[event.key] = event

    make_on_processes(
        workshop,
        workshop.store.pieces(ledger.rows),
        num_processes=num_processes,
        device="cpu",
        on_settled=on_settled,
    )
    return settled


@pytest.mark.distributed
def test_all_arrays_are_made_once_and_a_second_time_nothing_is(workshop, ledger):
    pieces = workshop.store.pieces(ledger.rows)
    assert len(pieces) == 2 * NUM_CLIPS + 1
    settled = make(workshop, ledger)
    assert all(settled[piece.key].is_own for piece in pieces)
    assert all(workshop.store.cache.has(piece.key) for piece in pieces)
    assert not any(event.is_own for event in make(workshop, ledger).values())


@pytest.mark.distributed
def test_a_clip_that_ends_every_process_that_encodes_it_is_rejected(workshop, ledger):
    """As one does that makes the encoder ask for more memory than there is."""
    fatal = next(row.bucket for row in ledger.rows if row.clip.name == "b.mp4")
    shape = (fatal.frames, fatal.height, fatal.width, 3)
    others = [row for row in ledger.rows if row.clip.name != "b.mp4"]
    assert all(row.bucket != fatal for row in others)

    def trap(frames: np.ndarray) -> None:
        if frames.shape == shape:
            os.kill(os.getpid(), signal.SIGKILL)

    trapped = with_video_trap(workshop, trap)
    settled = make(trapped, ledger)
    amended = trapped.store.amended(ledger, {})
    assert [row.clip.name for row in amended.rows if row.status == "rejected"] == ["b.mp4"]
    (reason,) = [event.reason for event in settled.values() if event.reason]
    assert reason == "preparing it ended the process 2 times (SIGKILL)"
    for row in others:
        assert all(map(trapped.store.cache.has, trapped.store.keys_of(row)))
    assert not any(trapped.store.claims_dir.iterdir())


@pytest.mark.distributed
def test_a_process_that_is_killed_once_costs_no_clip(workshop, ledger, tmp_path):
    def trap(frames: np.ndarray) -> None:
        try:
            (tmp_path / "killed").touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    trapped = with_video_trap(workshop, trap)
    settled = make(trapped, ledger)
    assert not [event.reason for event in settled.values() if event.reason]
    assert all(trapped.store.cache.has(piece.key) for piece in trapped.store.pieces(ledger.rows))


@pytest.mark.distributed
def test_an_error_that_every_process_would_meet_ends_all_of_them(workshop, ledger):
    def refuse(_: object) -> None:
        raise ConfigError("no weights; name another folder")

    text = Trapped("refuses", refuse)
    broken = replace(
        workshop, store=replace(workshop.store, text_fingerprint="refuses"), text_encoder=text
    )
    with pytest.raises(ConfigError, match="no weights"):
        make(broken, ledger)


@pytest.mark.distributed
def test_an_encoder_without_memory_is_a_line_of_what_helps(workshop, ledger):
    def run_out(_: np.ndarray) -> None:
        raise torch.OutOfMemoryError("planted")

    with pytest.raises(RankMemoryError, match=r"^out of memory while .* arachne prepare --workers"):
        make(with_video_trap(workshop, run_out), ledger)


@pytest.mark.distributed
def test_a_bug_comes_with_its_traceback(workshop, ledger):
    def divide(frames: np.ndarray) -> None:
        _ = len(frames) // 0

    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        make(with_video_trap(workshop, divide), ledger)


@pytest.mark.distributed
def test_processes_that_end_whatever_they_do_end_the_work(workshop, ledger):
    text = Trapped("fatal", lambda _: os.kill(os.getpid(), signal.SIGKILL))
    broken = replace(
        workshop, store=replace(workshop.store, text_fingerprint="fatal"), text_encoder=text
    )
    with pytest.raises(LostRankError, match=r"before they have made anything \(SIGKILL\)"):
        make(broken, ledger)
