import os
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from arachne.core.bucket import Bucket
from arachne.core.clip import TimeSpan
from arachne.core.errors import DamagedFileError, DataError
from arachne.data import atomic_file
from arachne.data.cache import (
    LatentCache,
    check_cache,
    first_frame_key,
    text_key,
    video_key,
)

SHAPE = Bucket(width=64, height=48, frames=17)
KEY = video_key("ab" * 32, None, SHAPE, 16.0, "dct-1")


@pytest.fixture
def cache(tmp_path: Path) -> LatentCache:
    return LatentCache(tmp_path / "cache")


@pytest.mark.parametrize("kind", ["float32", "float16", "uint8"])
def test_an_array_comes_back_as_it_was(cache: LatentCache, kind: str) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(kind).transpose(2, 0, 1)
    assert not cache.has(KEY)
    cache.put(KEY, array)
    assert cache.has(KEY)
    found = cache.get(KEY)
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)


def test_a_key_changes_with_everything_that_made_the_array() -> None:
    span = TimeSpan(start_s=0.0, end_s=1.0)
    keys = [
        KEY,
        video_key("cd" * 32, None, SHAPE, 16.0, "dct-1"),
        video_key("ab" * 32, span, SHAPE, 16.0, "dct-1"),
        video_key("ab" * 32, TimeSpan(start_s=0.0, end_s=1.001), SHAPE, 16.0, "dct-1"),
        video_key("ab" * 32, None, Bucket(width=48, height=64, frames=17), 16.0, "dct-1"),
        video_key("ab" * 32, None, SHAPE, 24.0, "dct-1"),
        video_key("ab" * 32, None, SHAPE, 16.0, "dct-2"),
        video_key("ab" * 32, None, SHAPE, 16.0, "dct-1", "letterbox"),
        text_key("a cat", "hashed-1"),
        text_key("a dog", "hashed-1"),
        text_key("a cat", "hashed-2"),
        text_key("", "hashed-1"),
        text_key("a cat", "hashed-1", first_frame_key("ab" * 32, None, SHAPE, 16.0)),
        text_key("a cat", "hashed-1", first_frame_key("ab" * 32, span, SHAPE, 16.0)),
        text_key("a cat", "hashed-1", first_frame_key("cd" * 32, None, SHAPE, 16.0)),
    ]
    assert len(set(keys)) == len(keys)
    longer = replace(SHAPE, frames=SHAPE.frames + 4)
    assert first_frame_key("ab" * 32, None, longer, 16.0) == first_frame_key(
        "ab" * 32, None, SHAPE, 16.0
    )


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_file_counts_as_absent(cache: LatentCache, share: float) -> None:
    cache.put(KEY, np.ones((4, 5), np.float32))
    path = cache.path_of(KEY)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    assert not cache.has(KEY)
    with pytest.raises(DataError, match=r"damaged; delete it, and train again"):
        cache.get(KEY)
    cache.put(KEY, np.ones((4, 5), np.float32))
    assert cache.get(KEY).shape == (4, 5)


def test_each_flipped_byte_is_found(cache: LatentCache) -> None:
    cache.put(KEY, np.arange(20, dtype=np.float32))
    path = cache.path_of(KEY)
    content = path.read_bytes()
    for at in range(0, len(content)):
        if content[at] == ord(" "):  # padding of the header
            continue
        damaged = bytearray(content)
        damaged[at] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(DataError):
            cache.get(KEY)


@pytest.mark.parametrize(
    ("metadata", "end"),
    [("null", "80"), ("[]", "80"), ('{"key": 1}', "80"), ("{}", "1e400"), ("{}", "[" * 5000)],
)
def test_headers_that_no_writer_writes_count_as_absent(
    cache: LatentCache, metadata: str, end: str
) -> None:
    cache.put(KEY, np.ones(20, np.float32))
    shape = '"dtype": "F32", "shape": [20]'
    header = f'{{"__metadata__": {metadata}, "array": {{{shape}, "data_offsets": [0, {end}]}}}}'
    packed = header.encode()
    cache.path_of(KEY).write_bytes(struct.pack("<Q", len(packed)) + packed + bytes(80))
    assert not cache.has(KEY)
    assert cache.frames_of(KEY) is None
    with pytest.raises(DataError, match="damaged"):
        cache.get(KEY)


def test_a_missing_array_is_told_from_a_damaged_one(cache: LatentCache) -> None:
    with pytest.raises(DataError, match=r"no cached array .*; train again to encode it"):
        cache.get(KEY)


@pytest.mark.timeout(20)
def test_a_pipe_in_the_place_of_an_array_keeps_nobody_waiting(cache: LatentCache) -> None:
    path = cache.path_of(KEY)
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    assert not cache.has(KEY)
    with pytest.raises(DamagedFileError):
        cache.get(KEY)
    cache.put(KEY, np.ones(3))
    assert np.array_equal(cache.get(KEY), np.ones(3))


def test_a_file_of_another_key_is_not_taken(cache: LatentCache) -> None:
    cache.put(KEY, np.ones(3, np.float32))
    other = text_key("a cat", "hashed-1")
    cache.path_of(other).parent.mkdir(parents=True, exist_ok=True)
    os.replace(cache.path_of(KEY), cache.path_of(other))
    assert not cache.has(other)
    with pytest.raises(DataError, match="another key"):
        cache.get(other)


def test_a_kill_while_writing_leaves_the_old_array(
    cache: LatentCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.put(KEY, np.zeros(3, np.float32))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(atomic_file.os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        cache.put(KEY, np.ones(3, np.float32))
    assert cache.get(KEY).tolist() == [0.0, 0.0, 0.0]


def test_a_cache_that_cannot_be_written_is_refused_before_it_is_made(tmp_path: Path) -> None:
    check_cache(tmp_path / "a" / "b")
    assert not any(tmp_path.iterdir())
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "cache", Path("/proc/cache")):
        with pytest.raises(DataError, match=rf"cannot write '{folder}': .*set data\.cache to anot"):
            check_cache(folder)


def test_a_cache_with_something_in_it_may_be_only_for_reading() -> None:
    check_cache(Path("/proc/self"))


def test_how_many_frames_were_decoded_is_kept_with_the_array(cache: LatentCache) -> None:
    assert cache.frames_of(KEY) is None
    cache.put(KEY, np.ones(3, np.float32))
    assert cache.frames_of(KEY) is None
    cache.put(KEY, np.ones(3, np.float32), num_frames=17)
    assert cache.frames_of(KEY) == 17
    assert cache.get(KEY).tolist() == [1.0, 1.0, 1.0]


def test_a_full_disk_is_one_line_and_leaves_no_file(
    cache: LatentCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_file.os, "fsync", full)
    with pytest.raises(
        DataError, match=r"cannot write .*: No space left on device; make room .*data\.cache"
    ):
        cache.put(KEY, np.ones(3, np.float32))
    assert not list(cache.path_of(KEY).parent.iterdir())


def test_a_file_is_synced_before_it_gets_its_name(
    cache: LatentCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(atomic_file.os, "fsync", lambda fd: (calls.append("sync"), fsync(fd)))
    monkeypatch.setattr(
        atomic_file.os, "replace", lambda a, b: (calls.append("rename"), replace(a, b))
    )
    cache.put(KEY, np.ones(3, np.float32))
    assert calls == ["sync", "rename", "sync"]


def test_equal_arrays_are_equal_files(cache: LatentCache) -> None:
    contents: set[bytes] = set()
    for _ in range(8):
        cache.put(KEY, np.ones(3, np.float32))
        contents.add(cache.path_of(KEY).read_bytes())
    assert len(contents) == 1


def test_only_leftovers_of_our_own_are_deleted(tmp_path: Path) -> None:
    ours = tmp_path / "ab" / f".{KEY}.safetensors.{'0a' * 16}.tmp"
    young = ours.with_name(f".{KEY}.safetensors.{'0b' * 16}.tmp")
    theirs = tmp_path / ".notes.tmp"
    ours.parent.mkdir()
    for path in (ours, young, theirs):
        path.touch()
    for path in (ours, theirs):
        os.utime(path, (0, 0))
    atomic_file.remove_leftovers(tmp_path)
    assert (ours.exists(), young.exists(), theirs.exists()) == (False, True, True)
