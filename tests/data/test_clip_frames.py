"""Frames for encoding within steps, and arrays that are stored in the background."""

import time
from pathlib import Path

import numpy as np
import pytest

from arachne.core.errors import DataError
from arachne.data.cache import LatentCache
from arachne.data.cache_writer import CacheWriter
from arachne.data.clip_frames import ClipFrames
from arachne.data.decode import decode_clip
from arachne.data.guarded_decoder import GuardedDecoder
from arachne.data.make_arrays import Workshop
from tests.data.media import Look, grey_frames, write_video
from tests.data.test_make_arrays import inspected, root, workshop  # noqa: F401  fixtures


def test_frames_are_those_that_decoding_gives_and_stay_when_the_next_clip_is_decoded(
    root: Path,  # noqa: F811
    workshop: Workshop,  # noqa: F811
) -> None:
    dark = Look()
    write_video(root / "1.mp4", grey_frames([30] * 17, dark), dark)
    rows = inspected(root).usable
    with ClipFrames(workshop) as clips:
        found = [clips.read(row) for row in rows]
        assert clips.counts == {workshop.store.keys_of(rows[1])[0]: 17}, "decoded to their end"
    for row, frames in zip(rows, found, strict=True):
        assert row.bucket is not None
        expected = np.empty_like(frames)
        decode_clip(root / row.clip.path, row.clip.span, row.bucket, 16.0, into=expected)
        assert np.array_equal(frames, expected)
    assert len({frames.tobytes() for frames in found}) > 1


def test_a_clip_that_was_rejected_before_is_not_tried_again(
    root: Path,  # noqa: F811
    workshop: Workshop,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = inspected(root).usable[0]
    workshop.store.rejections.add(workshop.store.keys_of(row)[0], "too dark")
    monkeypatch.setattr(GuardedDecoder, "start", lambda *_: pytest.fail("it was tried"))
    with ClipFrames(workshop) as clips, pytest.raises(DataError, match=r"clip '0\.mp4': too dark"):
        clips.read(row)


def test_a_file_that_changed_is_refused_but_not_remembered(
    root: Path,  # noqa: F811
    workshop: Workshop,  # noqa: F811
) -> None:
    row = inspected(root).usable[0]
    (root / "0.mp4").write_bytes(b"something else")
    with ClipFrames(workshop) as clips, pytest.raises(DataError, match="the file has changed"):
        clips.read(row)
    assert workshop.store.rejections.reason_of(workshop.store.keys_of(row)[0]) is None


def test_what_is_written_in_the_background_is_there_at_the_end(tmp_path: Path) -> None:
    cache = LatentCache(tmp_path)
    keys = [f"{number:064x}" for number in range(5)]
    with CacheWriter(cache, {keys[2]: 17}) as writer:
        for number, key in enumerate(keys):
            writer.put(key, np.full((2, 3), number, np.float32))
    assert [cache.get(key)[0, 0] for key in keys] == [0, 1, 2, 3, 4]
    assert [cache.frames_of(key) for key in keys] == [None, None, 17, None, None]


def test_a_full_disk_is_told_by_a_check_or_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise DataError("no space left")

    monkeypatch.setattr(LatentCache, "put", full)
    with pytest.raises(DataError, match="no space"), CacheWriter(LatentCache(tmp_path)) as writer:
        writer.put("ab" * 32, np.zeros(3, np.float32))
    with CacheWriter(LatentCache(tmp_path)) as writer:
        writer.put("ab" * 32, np.zeros(3, np.float32))
        with pytest.raises(DataError, match="no space"):
            check_for(writer, 10.0)


def check_for(writer: CacheWriter, seconds: float) -> None:
    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s:
        writer.check()
