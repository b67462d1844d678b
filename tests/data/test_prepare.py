import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from arachne.core.families import family_named
from arachne.core.ledger import Ledger, LedgerRow
from arachne.data.cache import LatentCache
from arachne.data.inspect import inspect_dataset
from arachne.data.prepare import encode_clip, keys_of, missing
from arachne.data.shapes import ShapeRules
from tests.data.media import write_ramp


@dataclass
class MeanEncoder:
    """One channel, every fourth frame, every eighth pixel."""

    fingerprint: str = "mean-1"
    factor: float = 1.0
    num_calls: int = 0

    def encode(self, frames: np.ndarray, /) -> np.ndarray:
        self.num_calls += 1
        return frames[None, ::4, ::8, ::8, 0].astype(np.float32) * self.factor


@dataclass
class LengthEncoder:
    fingerprint: str = "length-1"
    captions: list[str] = field(default_factory=list)

    def encode(self, caption: str, /) -> np.ndarray:
        self.captions.append(caption)
        return np.full((2, 3), len(caption), np.float32)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for index in range(3):
        write_ramp(tmp_path / "data" / f"{index}.mp4", 20 + index)
        (tmp_path / "data" / f"{index}.txt").write_text(f"clip {index}")
    return tmp_path / "data"


@pytest.fixture
def cache(tmp_path: Path) -> LatentCache:
    return LatentCache(tmp_path / "cache")


def _inspect(root: Path, resolution: int = 64) -> Ledger:
    rules = ShapeRules(fps=16.0, resolution=resolution, frame_buckets=(17,))
    return inspect_dataset(root, rules, family_named("wan").geometry, "error", 1)


def _encode(row: LedgerRow, root: Path, cache: LatentCache, video: MeanEncoder) -> LedgerRow:
    return encode_clip(row, root, 16.0, video, LengthEncoder(), cache)


def test_latents_and_token_states_are_cached(root: Path, cache: LatentCache) -> None:
    row = _inspect(root).rows[0]
    assert _encode(row, root, cache, MeanEncoder()) == row
    latents_key, states_key = keys_of(row, 16.0, "mean-1", "length-1")
    assert cache.get(latents_key).shape == (1, 5, 6, 8)
    assert cache.get(states_key).tolist() == [[6.0] * 3] * 2


def test_preparing_goes_on_where_it_stopped(root: Path, cache: LatentCache) -> None:
    rows = _inspect(root).rows
    encoder = MeanEncoder()
    assert missing(rows, cache, 16.0, "mean-1", "length-1") == rows
    _encode(rows[1], root, cache, encoder)
    assert missing(rows, cache, 16.0, "mean-1", "length-1") == (rows[0], rows[2])
    for row in rows:
        _encode(row, root, cache, encoder)
    assert encoder.num_calls == 3
    assert missing(rows, cache, 16.0, "mean-1", "length-1") == ()


def test_only_what_a_change_touches_is_done_again(root: Path, cache: LatentCache) -> None:
    row = _inspect(root).rows[0]
    video, text = MeanEncoder(), LengthEncoder()
    encode_clip(row, root, 16.0, video, text, cache)
    encode_clip(row, root, 16.0, video, LengthEncoder(fingerprint="length-2"), cache)
    assert video.num_calls == 1
    smaller = _inspect(root, resolution=48).rows[0]
    assert smaller.bucket != row.bucket
    encode_clip(smaller, root, 16.0, video, text, cache)
    assert (video.num_calls, text.captions) == (2, ["clip 0"])


def test_a_clip_that_cannot_be_decoded_is_rejected_and_nothing_is_cached(
    root: Path, cache: LatentCache
) -> None:
    row = _inspect(root).rows[0]
    (root / "0.mp4").unlink()
    found = _encode(row, root, cache, MeanEncoder())
    assert found.status == "rejected"
    assert "is not a file" in found.reason
    assert found.clip == row.clip
    assert _encode(found, root, cache, MeanEncoder()) == found


def test_a_file_replaced_by_another_of_the_same_name_and_time_gives_no_stale_latent(
    root: Path, cache: LatentCache
) -> None:
    path = root / "0.mp4"
    row = _inspect(root).rows[0]
    _encode(row, root, cache, MeanEncoder())
    old = path.stat()
    write_ramp(path, 18)
    padding = old.st_size - path.stat().st_size  # an mp4 box that players skip
    with path.open("ab") as file:
        file.write(padding.to_bytes(4, "big") + b"free" + bytes(padding - 8))
    os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))
    new = path.stat()
    assert (new.st_size, new.st_mtime_ns, new.st_ino) == (old.st_size, old.st_mtime_ns, old.st_ino)
    again = _inspect(root).rows[0]
    assert missing([again], cache, 16.0, "mean-1", "length-1") == (again,)
    other = MeanEncoder(fingerprint="mean-2")
    assert "changed since it was inspected" in _encode(row, root, cache, other).reason


def test_latents_that_are_not_finite_are_rejected(root: Path, cache: LatentCache) -> None:
    row = _inspect(root).rows[0]
    found = _encode(row, root, cache, MeanEncoder(factor=float("nan")))
    assert found.status == "rejected"
    assert "not finite" in found.reason
