"""Rows of an earlier ledger stand where files are as they were, whatever they lie in."""

import io
import os
import shutil
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from arachne.core.clip import Clip, TimeSpan
from arachne.core.families import WAN
from arachne.core.ledger import LedgerRow
from arachne.data import inspect as data_inspect
from arachne.data import known_rows
from arachne.data.extraction import Extraction
from arachne.data.inspect import inspect_clips
from arachne.data.known_rows import current_stamps, replaced_paths
from arachne.data.shapes import ShapeRules
from tests.data.media import write_ramp

RULES = ShapeRules(
    fps=16.0,
    resolution=64,
    frame_buckets=(1, 5, 9),
    extraction=Extraction(mode="chunk", frame_sample=2, frame_stride=16, max_frames=129),
)
SPAN = TimeSpan(start_s=0.5, end_s=1.0)
CLIPS = (
    Clip(path="a.mp4", caption="a"),
    Clip(path="b.mp4", caption="part of b", span=SPAN),
    Clip(path="b.mp4", caption="the same part in other words", span=SPAN),
    Clip(path="x.tar/c.mp4", caption="c"),
    Clip(path="x.tar/d.mp4", caption="d"),
    Clip(path="bad.mp4", caption="bad"),
    Clip(path="away.mp4", caption="away"),
)


@pytest.fixture
def root(tmp_path) -> Path:
    for number, name in enumerate("abcd"):
        write_ramp(tmp_path / f"{name}.mp4", 20 + number)
    write_shard(tmp_path, "c", "d")
    (tmp_path / "bad.mp4").write_bytes(b"no video")
    return tmp_path


def write_shard(root: Path, *names: str) -> None:
    with tarfile.open(root / "x.tar", "w") as tar:
        for member, name in zip("cd", names, strict=True):
            content = (root / f"{name}.mp4").read_bytes()
            info = tarfile.TarInfo(f"{member}.mp4")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


@pytest.fixture
def read(monkeypatch) -> list[str]:
    """Files that are looked into, from now on."""
    found: list[str] = []
    look = data_inspect._inspect_file

    def counted(job):
        found.append(job.path)
        return look(job)

    monkeypatch.setattr(data_inspect, "_inspect_file", counted)
    return found


def inspected(
    root: Path, clips: Sequence[Clip] = CLIPS, known: Sequence[LedgerRow] = ()
) -> tuple[LedgerRow, ...]:
    return inspect_clips(root, clips, RULES, WAN.geometry, num_workers=1, known=known).rows


def test_nothing_is_read_of_files_that_are_as_they_were_but_what_could_not_be_read(root, read):
    before = inspected(root)
    assert [row.clip.name for row in before if row.clip.piece][:2] == [
        "a.mp4@0.00-0.56s",
        "a.mp4@0.56-1.12s",
    ]
    read.clear()
    assert inspected(root, known=before) == before
    assert read == ["away.mp4"]


def test_rows_go_with_a_clip_into_other_words_and_places(root, read):
    before = inspected(root)
    read.clear()
    clips = tuple(replace(clip, caption=f"new {clip.caption}") for clip in reversed(CLIPS[:-1]))
    rows = inspected(root, clips, before)
    assert read == []
    assert rows == inspected(root, clips)


def test_another_part_of_a_known_file_is_read(root, read):
    before = inspected(root)
    read.clear()
    (clip,) = [replace(CLIPS[1], span=TimeSpan(start_s=0.0, end_s=0.4))]
    assert inspected(root, [clip], before) == inspected(root, [clip])
    assert read == ["b.mp4", "b.mp4"]


def test_a_file_of_the_same_name_size_and_time_with_other_content_is_read(root, read):
    before = inspected(root)
    stat = (root / "a.mp4").stat()
    content = bytearray((root / "a.mp4").read_bytes())
    content[-1] ^= 1
    (root / "other").write_bytes(content)
    os.utime(root / "other", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    (root / "other").replace(root / "a.mp4")
    assert (root / "a.mp4").stat().st_size == stat.st_size
    read.clear()
    after = inspected(root, known=before)
    assert read == ["a.mp4", "away.mp4"]
    assert after[0].content != before[0].content
    assert after == inspected(root)


def test_what_was_found_of_a_file_stays_known_if_it_is_only_touched(root, read):
    before = tuple(row.counted(7) if row.bucket else row for row in inspected(root))
    (root / "a.mp4").touch()
    read.clear()
    after = inspected(root, known=before)
    assert read == ["a.mp4", "away.mp4"]
    assert after == before
    assert [row.stamp == old.stamp for row, old in zip(after, before, strict=True)] == [
        row.clip.path != "a.mp4" for row in after
    ]


def test_rows_whose_stamp_is_not_known_are_read_and_stay_if_the_content_is_theirs(root, read):
    before = tuple(
        replace(row.counted(7) if row.bucket else row, stamp="") for row in inspected(root)
    )
    read.clear()
    after = inspected(root, CLIPS[:1], known=before)
    assert read == ["a.mp4"]
    assert after == before[:2]
    assert all(row.stamp for row in after)


def test_rows_of_a_file_that_is_away_stand(root, read):
    before = inspected(root)
    (root / "a.mp4").unlink()
    read.clear()
    assert inspected(root, known=before) == before
    assert read == ["away.mp4"]


def test_a_file_that_was_repaired_is_read(root):
    before = inspected(root)
    assert before[-2].bucket is None
    (root / "a.mp4").rename(root / "bad.mp4")
    assert inspected(root, CLIPS[5:6], before)[0].bucket is not None


def test_files_are_replaced_whose_bytes_are_others_also_in_a_shard(root):
    rows = inspected(root)
    assert replaced_paths(root, rows) == frozenset()
    write_shard(root, "c", "a")
    (root / "b.mp4").touch()
    (root / "a.mp4").unlink()
    assert replaced_paths(root, rows) == {"x.tar/d.mp4"}
    unknown = [replace(row, stamp="") for row in rows]
    assert replaced_paths(root, unknown) == frozenset()


def replace_in_disguise(path: Path) -> None:
    """By a file of other content, of the same size and modification time."""
    stat = path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    now = path.stat()
    assert (now.st_size, now.st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)


def test_a_file_that_was_replaced_by_one_of_its_size_and_time_is_noticed(root):
    rows = inspected(root)
    replace_in_disguise(root / "a.mp4")
    shutil.copy2(root / "b.mp4", root / "copy")
    (root / "copy").replace(root / "b.mp4")
    assert replaced_paths(root, rows) == {"a.mp4"}
    replace_in_disguise(root / "x.tar")  # within the zeros behind its last member
    assert replaced_paths(root, rows) == {"a.mp4"}


@pytest.mark.parametrize(
    ("bound", "value", "num_read"),
    [("_MAX_COPIES", 2, 2), ("_MAX_COPIED_BYTES", 0, 0), ("_MAX_COPIED_BYTES", 2**40, 5)],
)
def test_of_a_dataset_that_was_copied_no_more_is_read_than_the_bounds_say(
    root, monkeypatch, bound, value, num_read
):
    rows = inspected(root)
    for path in list(root.iterdir()):
        shutil.copy2(path, root / "copy")
        (root / "copy").replace(path)
    read: list[str] = []
    monkeypatch.setattr(known_rows, bound, value)
    monkeypatch.setattr(known_rows, "content_of", lambda file: read.append(str(file.path)))
    replaced_paths(root, rows)
    assert len(read) == num_read


def test_a_file_that_does_not_fit_the_bound_leaves_room_for_others(root, monkeypatch):
    rows = inspected(root)
    for path in (root / "a.mp4", root / "b.mp4"):
        replace_in_disguise(path)
    sizes = sorted((root / name).stat().st_size for name in ("a.mp4", "b.mp4"))
    assert sizes[0] < sizes[1]
    monkeypatch.setattr(known_rows, "_MAX_COPIED_BYTES", sizes[0])
    (replaced,) = replaced_paths(root, rows)
    assert (root / replaced).stat().st_size == sizes[0]


def test_stamps_are_of_the_file_that_holds_a_clip(root):
    stamps = current_stamps(root, [clip.path for clip in CLIPS] + ["../x.mp4", "/etc/passwd"])
    assert stamps.keys() == {clip.path for clip in CLIPS} - {"away.mp4"}
    stat = (root / "x.tar").stat()
    assert stamps["x.tar/c.mp4"] == f"{stat.st_size}-{stat.st_mtime_ns}:{stat.st_ctime_ns}"
    assert stamps["x.tar/d.mp4"] == stamps["x.tar/c.mp4"]
