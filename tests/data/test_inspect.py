import os
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from arachne.core.errors import ConfigError, DataError
from arachne.core.families import family_named
from arachne.core.ledger import Ledger
from arachne.data import inspect
from arachne.data.inspect import _in_processes, _jobs, inspect_dataset
from arachne.data.layouts import read_clips
from arachne.data.shapes import ShapeRules
from tests.data.media import Look, write_ramp

WAN = family_named("wan").geometry
RULES = ShapeRules(fps=16.0, resolution=64, frame_buckets=(1, 17, 33))


def _inspect(root: Path, num_workers: int = 1) -> Ledger:
    return inspect_dataset(root, RULES, WAN, "empty", num_workers)


def test_bad_files_are_rejected_with_a_reason_and_the_rest_goes_on(tmp_path: Path) -> None:
    good = write_ramp(tmp_path / "good.mp4", 40)
    content = good.read_bytes()
    (tmp_path / "cut.mp4").write_bytes(content[: len(content) * 2 // 3])
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "text.mp4").write_text("no video" * 100)
    Image.new("RGB", (64, 48)).save(tmp_path / "photo.mp4", "JPEG")
    (tmp_path / "outside.mp4").symlink_to("/etc/hostname")
    rows = {row.clip.path: row for row in _inspect(tmp_path).rows}
    assert {path: row.status for path, row in rows.items()} == {
        "cut.mp4": "rejected",
        "empty.mp4": "rejected",
        "good.mp4": "trimmed",
        "outside.mp4": "rejected",
        "photo.mp4": "rejected",
        "text.mp4": "rejected",
    }
    assert all(row.reason for row in rows.values() if row.status == "rejected")
    assert rows["good.mp4"].num_tokens == 9 * 3 * 4
    assert len(rows["good.mp4"].content) == 64
    assert rows["outside.mp4"].content == ""


def test_evil_paths_of_a_table_are_rejected_by_name_and_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    write_ramp(root / "good.mp4", 17)
    secret = write_ramp(tmp_path / "secret.mp4", 17)
    (root / "link.mp4").symlink_to(secret)
    (root / "out").symlink_to(tmp_path)
    evil = {
        "../secret.mp4": "'..'",
        str(secret): "absolute",
        "concat:good.mp4|good.mp4": "an address",
        "http://example.org/a.mp4": "an address",
        "file:///etc/passwd": "an address",
        "link.mp4": "a link that leaves",
        "out/secret.mp4": "a link that leaves",
        "good.mp4/a.tar/b.mp4": "not a file",
        "out/x.tar/a.mp4": "a link that leaves",
    }
    (root / "metadata.csv").write_text("path,text\n" + "".join(f'"{p}",x\n' for p in evil))
    opened: list[Path] = []
    original = Path.open

    def spy(path: Path, *arguments: Any, **names: Any) -> Any:
        opened.append(path.resolve())
        return original(path, *arguments, **names)

    monkeypatch.setattr(Path, "open", spy)
    rows = _inspect(root).rows
    assert [row.status for row in rows] == ["rejected"] * len(evil)
    for row, words in zip(rows, evil.values(), strict=True):
        assert words in row.reason, row
        assert row.content == ""
    assert {path.name for path in opened} == {"metadata.csv"}


def test_an_endless_name_or_a_strange_one_is_one_rejected_row(tmp_path: Path) -> None:
    (tmp_path / "metadata.csv").write_text("path,text\n" + "x" * 9000 + ',a\n"a\x00.mp4",b\n')
    assert [row.status for row in _inspect(tmp_path).rows] == ["rejected", "rejected"]


def test_a_table_is_a_dataset_whose_folder_is_the_root(tmp_path: Path) -> None:
    write_ramp(tmp_path / "sub" / "a.mp4", 17)
    for name in ("one.csv", "two.csv"):
        (tmp_path / name).write_text(f"video,caption\nsub/a.mp4,{name}\n")
    (row,) = _inspect(tmp_path / "two.csv").rows
    assert (row.status, row.clip.caption) == ("kept", "two.csv")
    assert inspect_dataset(tmp_path / "two.csv", RULES, WAN, "error", 2).rows == (row,)
    with pytest.raises(DataError, match=r"2 tables: one\.csv, two\.csv; name the one that lists"):
        _inspect(tmp_path)
    with pytest.raises(DataError, match=r"sub/a\.mp4' lists no clips; name a folder, a table"):
        _inspect(tmp_path / "sub" / "a.mp4")


def test_a_file_of_the_same_name_size_and_time_is_another_file(tmp_path: Path) -> None:
    path = write_ramp(tmp_path / "a.mp4", 17)
    first = _inspect(tmp_path).rows[0]
    stat = path.stat()
    content = path.read_bytes()
    at = content.index(b"Lavf")
    path.write_bytes(content[:at] + b"Lavg" + content[at + 4 :])
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    assert _inspect(tmp_path).rows[0].content != first.content


def test_images_train_beside_videos(tmp_path: Path) -> None:
    write_ramp(tmp_path / "a.mp4", 17)
    for name in ("b.png", "c.webp", "d.jpg"):
        Image.new("RGB", (64, 48)).save(tmp_path / name)
    rows = _inspect(tmp_path).rows
    assert [str(row.bucket) for row in rows] == ["64x48x17", *["64x48x1"] * 3]
    assert [row.status for row in rows] == ["kept"] * 4


def test_spans_are_cut_trimmed_and_rejected(tmp_path: Path) -> None:
    write_ramp(tmp_path / "a.mp4", 40)
    (tmp_path / "metadata.csv").write_text(
        "video,caption,start,end\na.mp4,x,0,2.0625\na.mp4,x,1,9\na.mp4,x,7,9\na.mp4,x,,\n"
    )
    rows = _inspect(tmp_path).rows
    assert [row.status for row in rows] == ["kept", "trimmed", "rejected", "trimmed"]
    assert rows[0].arithmetic == "33f@16 → 33f@16 → 33"
    assert rows[1].reason.startswith("the span ends at 9.00 s but the file at 2.50 s; 7 frames")
    assert "begins after the file's end" in rows[2].reason


def test_a_span_that_runs_past_the_end_is_trimmed_even_if_a_length_is_filled(
    tmp_path: Path,
) -> None:
    write_ramp(tmp_path / "a.mp4", 33)
    (tmp_path / "metadata.csv").write_text("video,caption,start,end\na.mp4,x,0,9\n")
    (row,) = _inspect(tmp_path).rows
    assert row.status == "trimmed"
    assert row.reason == "the span ends at 9.00 s but the file at 2.06 s"


def test_a_turned_clip_gets_a_portrait_bucket(tmp_path: Path) -> None:
    write_ramp(tmp_path / "a.mp4", 17, Look(rotation=-90, fps=Fraction(16)))
    (row,) = _inspect(tmp_path).rows
    assert str(row.bucket) == "48x64x17"


def test_files_of_one_name_and_one_content_each_have_their_row(tmp_path: Path) -> None:
    write_ramp(tmp_path / "one" / "a.mp4", 17)
    write_ramp(tmp_path / "two" / "a.mp4", 33)
    rows = _inspect(tmp_path).rows
    assert [row.bucket.frames for row in rows if row.bucket] == [17, 33]
    assert rows[0].content != rows[1].content


def test_processes_give_the_same_ledger_as_one_process(tmp_path: Path) -> None:
    for index in range(3):
        write_ramp(tmp_path / f"{index}.mp4", 17 + 8 * index)
    (tmp_path / "bad.mp4").touch()
    calls: list[tuple[int, int]] = []
    ledger = inspect_dataset(
        tmp_path, RULES, WAN, "empty", 2, lambda done, total: calls.append((done, total))
    )
    assert ledger == _inspect(tmp_path)
    assert sorted(calls) == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_illegal_lengths_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    rules = ShapeRules(fps=16.0, resolution=64, frame_buckets=(16,))
    with pytest.raises(ConfigError, match="use 13 or 17"):
        inspect_dataset(tmp_path / "none", rules, WAN, "empty", 1)


class _EndsItsReader:
    """Stands for a file that crashes the decoder: the process that unpickles it ends."""

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return os._exit, (1,)


def test_a_file_that_ends_its_process_is_rejected_and_the_rest_goes_on(tmp_path: Path) -> None:
    for index in range(3):
        write_ramp(tmp_path / f"{index}.mp4", 17)
    jobs = _jobs(tmp_path, read_clips(tmp_path, "empty"), RULES, WAN)
    jobs[1] = replace(jobs[1], geometry=_EndsItsReader())
    rows = dict(row for file_rows in _in_processes(jobs, 2) for row in file_rows)
    assert [rows[index][0].status for index in range(3)] == ["kept", "rejected", "kept"]
    assert rows[1][0].reason == "reading the file ended the process that read it"


def test_after_a_crash_only_the_jobs_of_that_moment_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(40):
        (tmp_path / f"{index:02}.mp4").touch()
    jobs = _jobs(tmp_path, read_clips(tmp_path, "empty"), RULES, WAN)
    jobs[0] = replace(jobs[0], geometry=_EndsItsReader())
    alone: list[str] = []
    monkeypatch.setattr(
        inspect, "_alone", lambda job: alone.append(job.path) or [(int(job.path[:2]), None)]
    )
    rows = dict(row for file_rows in _in_processes(jobs, 2) for row in file_rows)
    assert sorted(rows) == list(range(40))
    assert "00.mp4" in alone
    assert len(alone) <= 20  # four chunks of five
