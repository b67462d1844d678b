"""Three processes prepare one cache and are killed at random moments, again and again."""

import hashlib
import multiprocessing
import os
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arachne.core.bucket import Bucket
from arachne.core.clip import Clip, TimeSpan
from arachne.core.ledger import LedgerRow
from arachne.data import atomic_file
from arachne.data.cache import LatentCache
from arachne.data.make_arrays import Workshop, make_arrays
from arachne.data.prepare import Latents, Store
from tests.data.media import write_ramp

NUM_PROCESSES = 3
ENCODE_S = 0.25


class SlowEncoder:
    """Takes its time, so that kills find it at work."""

    fingerprint = "slow"

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def encode(self, frames: np.ndarray, /) -> np.ndarray:
        time.sleep(self._seconds)
        return np.repeat(frames[None, ::4, ..., 0].astype(np.float32), 8, axis=0)


class LengthEncoder:
    fingerprint = "length"

    def encode(self, caption: str, /) -> np.ndarray:
        return np.full((2, 3), len(caption), np.float32)


def workshop(root: Path, cache_dir: Path, encode_s: float) -> Workshop:
    return Workshop(
        root=root,
        store=Store(
            cache_dir=cache_dir, fps=16.0, video_fingerprint="slow", text_fingerprint="length"
        ),
        video_encoder=SlowEncoder(encode_s),
        text_encoder=LengthEncoder(),
        claims_expire_s=2.0,
    )


def spans_of_one_video(root: Path, count: int) -> list[LedgerRow]:
    """Rows of clips that overlap: many pieces of work from one small file."""
    path = write_ramp(root / "a.mp4", 80)
    content = hashlib.sha256(path.read_bytes()).hexdigest()
    return [
        LedgerRow(
            clip=Clip(
                path="a.mp4",
                caption=f"clip {index}",
                span=TimeSpan(start_s=index * 3.0 / count, end_s=4.0),
            ),
            status="kept",
            arithmetic="",
            reason="",
            bucket=Bucket(width=64, height=48, frames=5),
            num_tokens=12,
            content=content,
        )
        for index in range(count)
    ]


def prepare(root: Path, cache_dir: Path, rows: list[LedgerRow], log: Path, encode_s: float) -> None:
    """One process; it writes down each array that it stores, and whether it was there already."""
    put, fsync = LatentCache.put, os.fsync

    def logged(self: LatentCache, key: str, array: Any, **options: Any) -> None:
        with log.open("a") as file:
            file.write(f"{key} {self.has(key)}\n")
        put(self, key, array, **options)

    def slow_fsync(descriptor: int) -> None:
        time.sleep(0.01)
        fsync(descriptor)

    LatentCache.put = logged
    atomic_file.os.fsync = slow_fsync
    at = workshop(root, cache_dir, encode_s)
    make_arrays(at, at.store.pieces(rows), lambda event: None)


def run_with_kills(folder: Path, num_kills: int, seed: int) -> None:
    rows = spans_of_one_video(folder / "data", 7 * num_kills)
    log = folder / "log.txt"
    log.touch()
    chance = random.Random(seed)
    context: Any = multiprocessing.get_context("fork")

    def started() -> Any:
        arguments = (folder / "data", folder / "killed", rows, log, ENCODE_S)
        process = context.Process(target=prepare, args=arguments)
        process.start()
        return process

    processes = [started() for _ in range(NUM_PROCESSES)]
    for _ in range(num_kills):
        time.sleep(chance.uniform(0.2, 0.8))
        index = chance.randrange(NUM_PROCESSES)
        assert processes[index].is_alive(), "a kill must find it at work; give it more clips"
        processes[index].kill()
        processes[index].join()
        processes[index] = started()
    for process in processes:
        process.join()
        assert process.exitcode == 0

    at = workshop(folder / "data", folder / "undisturbed", 0.0)
    make_arrays(at, at.store.pieces(rows), lambda event: None)
    assert arrays_of(folder / "killed") == arrays_of(folder / "undisturbed")
    assert len(arrays_of(folder / "killed")) == 2 * len(rows) + 1
    assert not [line for line in log.read_text().splitlines() if line.endswith("True")]
    assert not any((folder / "killed" / "claims").iterdir())
    assert not (folder / "killed" / "rejected").exists()


def arrays_of(cache_dir: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in cache_dir.rglob("*.safetensors")}


@pytest.mark.distributed
def test_after_ten_kills_nothing_is_lost_half_written_or_done_again(tmp_path: Path) -> None:
    run_with_kills(tmp_path, num_kills=10, seed=0)


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_after_many_kills_nothing_is_lost_half_written_or_done_again(
    tmp_path: Path, num_cases: int
) -> None:
    """Seeds differ with the number, so that parts of a long run are other kills."""
    run_with_kills(tmp_path, num_kills=num_cases, seed=num_cases)


@pytest.mark.distributed
def test_after_a_kill_another_resolution_redoes_only_what_it_touches(tmp_path: Path) -> None:
    rows = spans_of_one_video(tmp_path / "data", 6)
    log = tmp_path / "log.txt"
    log.touch()
    context: Any = multiprocessing.get_context("fork")
    places = (tmp_path / "data", tmp_path / "cache")
    process = context.Process(target=prepare, args=(*places, rows, log, 0.05))
    process.start()
    while len(log.read_text().splitlines()) < 5:
        time.sleep(0.01)
        assert process.is_alive()
    process.kill()
    process.join()
    before = arrays_of(tmp_path / "cache")
    assert 4 <= len(before) < 2 * len(rows) + 1

    smaller = [replace(row, bucket=Bucket(width=32, height=24, frames=5)) for row in rows]
    process = context.Process(target=prepare, args=(*places, smaller, log, 0.0))
    process.start()
    process.join()
    assert process.exitcode == 0
    at = workshop(*places, 0.0)
    assert all(at.store.cache.has(piece.key) for piece in at.store.pieces(smaller))
    assert not [line for line in log.read_text().splitlines() if line.endswith("True")]
    after = arrays_of(tmp_path / "cache")
    assert before.items() <= after.items()
    num_old_latents = sum(
        at.store.cache.has(piece.key)
        for piece in at.store.pieces(rows)
        if isinstance(piece, Latents)
    )
    assert len(after) == num_old_latents + 2 * len(rows) + 1
