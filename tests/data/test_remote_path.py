"""Datasets at addresses: the same clips as in a folder, and nothing outside the address."""

import os
import re
import shutil
import struct
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from arachne.core.errors import ConfigError, DataError
from arachne.core.families import family_named
from arachne.core.ledger import Ledger
from arachne.data import fetched as fetching
from arachne.data.captions import read_text
from arachne.data.decode import decode_clip
from arachne.data.guarded_decoder import DecodeJob, GuardedDecoder, Refusal
from arachne.data.inspect import inspect_dataset
from arachne.data.layouts import detected_layout, read_clips
from arachne.data.media_file import MediaFile
from arachne.data.picture_source import scan_picture
from arachne.data.remote_path import DatasetPath, RemotePath, dataset_path
from arachne.data.shapes import ShapeRules
from arachne.data.source_media import source_media
from arachne.data.source_path import dataset_folder
from arachne.data.video_scan import scan_video
from tests.data.media import write_ramp

WAN = family_named("wan").geometry
RULES = ShapeRules(fps=16.0, resolution=64, frame_buckets=(1, 17, 33))


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same two clips in every layout, each in a folder of its own, and all of it in a zip."""
    top = tmp_path_factory.mktemp("layouts")
    media = top / "sidecars"
    for index, name in enumerate(("a", "day/b")):
        write_ramp(media / f"{name}.mp4", 20 + 20 * index)
        (media / f"{name}.txt").write_text(f"clip {name}")
    for name in ("table", "columns", "cells", "shards", "lists"):
        (top / name).mkdir()
    for name in ("table", "columns", "lists"):
        shutil.copytree(media, top / name, dirs_exist_ok=True, ignore=lambda _, n: {*n} & {"*.txt"})
    (top / "table" / "metadata.csv").write_text("video,caption\na.mp4,one\nday/b.mp4,two\n")
    rows = {"video": ["a.mp4", "day/b.mp4"], "caption": ["one", "two"]}
    pq.write_table(pa.table(rows), top / "columns" / "metadata.parquet")
    (top / "lists" / "videos.txt").write_text("a.mp4\nday/b.mp4\n")
    (top / "lists" / "prompts.txt").write_text("one\ntwo\n")
    content = pa.array([(media / name).read_bytes() for name in rows["video"]], pa.binary())
    cells = pa.table({"video": content, "caption": rows["caption"]})
    pq.write_table(cells, top / "cells" / "train.parquet")
    with tarfile.open(top / "shards" / "x.tar", "w") as tar:
        for file in sorted(media.rglob("*.*")):
            tar.add(file, file.name)
    with zipfile.ZipFile(top / "all.zip", "w") as archive:
        for file in sorted(top.rglob("*.*")):
            if file.name != "all.zip":
                archive.write(file, file.relative_to(top))
    return top


@pytest.fixture
def memory() -> Iterator[MemoryFileSystem]:
    system = MemoryFileSystem()
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    fetching.fetched.cache_clear()
    dataset_folder_cache_clear()
    yield system
    system.store.clear()


def dataset_folder_cache_clear() -> None:
    from arachne.data.source_path import _remote_folder

    _remote_folder.cache_clear()


def zipped(layouts: Path, folder: str) -> DatasetPath:
    return dataset_path(f"zip://{folder}::{layouts / 'all.zip'}")


def inspected(root: DatasetPath, num_workers: int = 1) -> Ledger:
    return inspect_dataset(root, RULES, WAN, "error", num_workers)


@pytest.mark.parametrize(
    "folder",
    ["sidecars", "table", "columns", "lists", "cells", "shards", "shards/x.tar"],
)
def test_an_address_gives_the_ledger_of_the_folder(layouts: Path, folder: str) -> None:
    root = zipped(layouts, folder)
    assert detected_layout(root).name == detected_layout(layouts / folder).name
    found = inspected(root)
    assert found == inspected(layouts / folder)
    assert found.counts == {"kept": 0, "trimmed": 2, "rejected": 0}


@pytest.mark.parametrize("folder", ["sidecars", "cells", "shards"])
def test_guarded_processes_decode_from_an_address(layouts: Path, folder: str) -> None:
    root = zipped(layouts, folder)
    with GuardedDecoder(time_limit_s=60.0) as decoder:
        for row in inspected(root).rows:
            assert row.bucket is not None
            decoder.start(
                DecodeJob(
                    root=root,
                    path=row.clip.path,
                    content=row.content,
                    span=None,
                    bucket=row.bucket,
                    fps=16.0,
                )
            )
            found = decoder.result()
            assert not isinstance(found, Refusal), found
            local = source_media(layouts / folder, row.clip.path)
            assert np.array_equal(found.pixels, decode_clip(local, None, row.bucket, 16.0))


def test_processes_inspect_an_address(layouts: Path) -> None:
    root = zipped(layouts, "sidecars")
    assert inspected(root, num_workers=2) == inspected(root)


def test_a_clip_is_fetched_once_and_nothing_stays_open(
    layouts: Path, memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.put(str(layouts / "table"), "/clips", recursive=True)
    opened: list[str] = []
    real_open = MemoryFileSystem._open

    def counted(self: MemoryFileSystem, path: str, *words: Any, **options: Any) -> Any:
        opened.append(path)
        return real_open(self, path, *words, **options)

    monkeypatch.setattr(MemoryFileSystem, "_open", counted)
    before = len(os.listdir("/proc/self/fd"))
    root = dataset_path("memory://clips")
    (first, *_) = inspected(root).rows
    assert opened == ["/clips/metadata.csv", "/clips/a.mp4", "/clips/day/b.mp4"]
    assert first.content
    fetching.fetched.cache_clear()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_was_replaced_is_read_again(layouts: Path, memory: MemoryFileSystem) -> None:
    content = (layouts / "sidecars" / "a.mp4").read_bytes()
    ends = [struct.pack(">I4sQ", 16, b"free", number) for number in range(2)]  # one size
    memory.pipe({"/clips/a.mp4": content + ends[0], "/clips/a.txt": b"a"})
    root = dataset_path("memory://clips")
    (before,) = inspected(root).rows
    memory.pipe("/clips/a.mp4", content + ends[1])
    fetching.fetched.cache_clear()
    (after,) = inspected(root).rows
    assert before.content != after.content
    assert before.bucket == after.bucket


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("../secret.mp4", "'..'"),
        ("%2e%2e/secret.mp4", "'..'"),
        ("..\\secret.mp4", "'..'"),
        ("/secret.mp4", "absolute"),
        ("memory://secret.mp4", "an address"),
        ("memory::/secret.mp4", "an address"),
        ("x::memory://secret.mp4", "an address"),
        ("gone.mp4", "not a file"),
        ("day", "not a file"),
    ],
)
def test_what_a_table_names_is_never_outside_the_address(
    layouts: Path,
    memory: MemoryFileSystem,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    reason: str,
) -> None:
    memory.put(str(layouts / "sidecars"), "/clips", recursive=True)
    memory.put(str(layouts / "sidecars" / "a.mp4"), "/secret.mp4")
    memory.pipe("/clips/metadata.csv", f"video,caption\na.mp4,x\n{path},y\n".encode())
    real_open = MemoryFileSystem._open

    def guarded(self: MemoryFileSystem, path: str, *words: Any, **options: Any) -> Any:
        assert path.startswith("/clips/"), path
        return real_open(self, path, *words, **options)

    monkeypatch.setattr(MemoryFileSystem, "_open", guarded)
    good, evil = inspected(dataset_path("memory://clips")).rows
    assert good.bucket is not None
    assert evil.status == "rejected"
    assert reason in evil.reason


class OfAnotherScheme(MemoryFileSystem):
    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix(f"{cls.protocol}://"))


def test_a_list_elsewhere_is_not_the_address(memory: MemoryFileSystem) -> None:
    """Servers may list what is not theirs; names begin with the folder or are left out."""
    memory.pipe("/clips/a.mp4", b"x")
    path = RemotePath(url="memory://clips")

    class Elsewhere(OfAnotherScheme):
        protocol = "elsewhere"

        def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
            return [*super().ls(path, detail=False), "/other/b.mp4", "/clips"]

        def find(self, path: str, *words: Any, **options: Any) -> list[str]:
            return self.ls(path)

    fsspec.register_implementation("elsewhere", Elsewhere, clobber=True)
    path = replace(path, url="elsewhere://clips")
    assert [each.name for each in path.iterdir()] == ["a.mp4"]
    assert path.files_below() == ["a.mp4"]


class Failing(OfAnotherScheme):
    """A connection that breaks when media are read, as libraries say so: with errors of theirs."""

    protocol = "failing"
    store = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode == "rb" and path.endswith((".mp4", ".png")):
            raise RuntimeError("connection reset\nby peer")
        return super()._open(path, mode, **options)


@pytest.mark.parametrize("name", ["a.mp4", "a.png"])
def test_a_connection_that_breaks_is_not_a_damaged_clip(name: str) -> None:
    fsspec.register_implementation("failing", Failing, clobber=True)
    Failing.store.clear()
    system = Failing()
    system.pipe({f"/clips/{name}": b"x" * 100, "/clips/a.txt": b"x"})
    (row,) = inspected(dataset_path("failing://clips")).rows
    assert row.reason == "the file cannot be read: RuntimeError: connection reset"
    file = MediaFile(path=dataset_path("failing://clips") / name, offset=0, num_bytes=100)
    scan = scan_picture if name.endswith("png") else scan_video
    with pytest.raises(OSError, match="connection reset"):
        scan(file)


def test_a_connection_that_cannot_be_made_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.register_implementation("failing", Failing, clobber=True)

    def refuse(*words: Any, **options: Any) -> Any:
        raise RuntimeError("access denied")

    monkeypatch.setattr(Failing, "info", refuse)
    with pytest.raises(DataError, match=r"'failing://clips'.*access denied; check the address"):
        detected_layout(dataset_path("failing://clips"))


@pytest.mark.parametrize(
    "address", ["zip://sidecars::/nowhere/gone.zip", "nonsense://of/another/machine"]
)
def test_what_cannot_be_reached_does_not_condemn_its_clips(layouts: Path, address: str) -> None:
    (row, *_) = inspected(layouts / "sidecars").rows
    assert row.bucket is not None
    job = DecodeJob(
        root=dataset_path(address),
        path=row.clip.path,
        content=row.content,
        span=None,
        bucket=row.bucket,
        fps=16.0,
    )
    with GuardedDecoder(time_limit_s=60.0) as decoder:
        decoder.start(job)
        found = decoder.result()
    assert isinstance(found, Refusal)
    assert not found.is_lasting
    assert address.partition("/")[0] in found.reason


@pytest.mark.parametrize(
    "address",
    [
        "failing://user:PLANTED@host/clips",
        "failing://KEY:PLAN/TED@bucket/clips",
        "failing://host/clips?sig=PLANTED&x=1",
        "zip://clips::failing://host/all.zip?token=PLANTED",
        "nonsense://user:PLANTED@host/clips",
        "nonsense://host/clips?sig=PLANTED",
    ],
)
@pytest.mark.parametrize("kind", [RuntimeError, FileNotFoundError, ConnectionError])
def test_no_message_holds_a_password_or_a_query(
    monkeypatch: pytest.MonkeyPatch, address: str, kind: type[Exception]
) -> None:
    fsspec.register_implementation("failing", Failing, clobber=True)

    def refuse(*words: Any, **options: Any) -> Any:
        raise kind(f"no answer from {address}")

    for question in ("info", "ls", "find", "open", "_open"):
        monkeypatch.setattr(Failing, question, refuse)
    root = dataset_path(address)
    asked = [
        lambda: detected_layout(root),
        lambda: read_clips(root / "metadata.csv", "error"),
        lambda: read_text(root / "a.txt", "a.txt"),
        lambda: source_media(root, "a.mp4"),
        lambda: (root / "a.mp4").read_bytes(),
    ]
    for ask in asked:
        with pytest.raises((DataError, ConfigError, OSError)) as caught:
            ask()
        for text in (str(caught.value), str(root), root.name):
            assert "PLAN" not in text
            assert "TED" not in text


def test_a_file_inside_may_have_a_question_mark() -> None:
    assert (dataset_path("memory://clips") / "day/why? a=b.mp4").suffix == ".mp4"


def test_an_archive_that_is_not_there_is_one_line() -> None:
    with pytest.raises(DataError, match=r"cannot read 'zip://d::/nowhere/gone.zip': No such file"):
        detected_layout(dataset_path("zip://d::/nowhere/gone.zip"))


def test_what_is_far_away_and_slow_may_be_tried_again(layouts: Path) -> None:
    from arachne.data.guarded_decoder import _took_too_long

    (row, *_) = inspected(layouts / "sidecars").rows
    assert row.bucket is not None
    job = DecodeJob(
        root=zipped(layouts, "sidecars"),
        path="a.mp4",
        content="",
        span=None,
        bucket=row.bucket,
        fps=16.0,
    )
    assert not _took_too_long(job, 1.0).is_lasting
    assert _took_too_long(replace(job, root=layouts), 1.0).is_lasting


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("s3fs", r"'s3://bucket/clips' needs a package that is not installed: Install s3fs"),
        ("fsspec.core", r"pip install 'arachne\[remote\]'"),
    ],
)
def test_a_driver_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, module: str, message: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=message):
        read_clips(dataset_path("s3://bucket/clips"), "error")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nonsense://clips", "Protocol not known: nonsense"),
        ("memory://", "names no folder"),
        ("dir::file:///tmp", "a folder of this machine"),
        ("simplecache::file:///tmp", "a folder of this machine"),
        ("filecache::dir::file:///tmp", "a folder of this machine"),
    ],
)
def test_addresses_that_cannot_be_used_are_refused(address: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataset_folder(dataset_path(address))


def test_arrow_files_must_be_copied_first(layouts: Path, memory: MemoryFileSystem) -> None:
    memory.pipe("/clips/state.json", b'{"_data_files": [{"filename": "data.arrow"}]}')
    memory.pipe("/clips/data.arrow", b"x")
    with pytest.raises(DataError, match=r"'data.arrow' is an Arrow file.*copy it here, or save"):
        read_clips(dataset_path("memory://clips"), "error")


def test_a_local_scheme_is_the_path_itself(tmp_path: Path) -> None:
    for scheme in ("file://", "local://"):
        assert dataset_path(f"{scheme}{tmp_path}") == tmp_path
    assert dataset_path("clips/a:b") == Path("clips/a:b")


@pytest.mark.parametrize(
    ("url", "below", "parent", "name"),
    [
        ("s3://bucket/clips/", "s3://bucket/clips/x/a.mp4", "s3://bucket", "clips"),
        ("zip://d::s3://b/c.zip", "zip://d/x/a.mp4::s3://b/c.zip", "zip://::s3://b/c.zip", "d"),
        ("zip://::s3://b/c.zip", "zip://x/a.mp4::s3://b/c.zip", "zip://::s3://b/c.zip", "c.zip"),
        ("filecache::s3://b/d", "filecache::s3://b/d/x/a.mp4", "filecache::s3://b", "d"),
    ],
)
def test_paths_of_an_address(url: str, below: str, parent: str, name: str) -> None:
    path = RemotePath(url=url)
    inside = path / "x" / "a.mp4"
    assert str(inside) == below
    assert inside.parent == path / "x"
    assert (inside.name, inside.suffix) == ("a.mp4", ".mp4")
    assert str(path.parent) == parent
    assert path.name == name


def test_slices_of_a_file_are_read_alone(memory: MemoryFileSystem) -> None:
    memory.pipe("/clips/x.bin", bytes(range(100)))
    path = dataset_path("memory://clips") / "x.bin"
    with closing(path.open("rb")) as file:
        assert (file.seek(-10, 2), file.read(4)) == (90, bytes(range(90, 94)))
        assert file.read() == bytes(range(94, 100))
    part = fetching.fetched(path, 20, 30)
    buffer = memoryview(bytearray(50))
    assert part.read_at(5, buffer) == 25
    assert bytes(buffer[:25]) == bytes(range(25, 50))
    with pytest.raises(OSError, match="ended 10 bytes early"):
        fetching.fetched(path, 20, 90)


def test_what_unpacks_to_far_more_than_it_is_is_rejected_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("d/a.mp4", bytes(2**25))
        archive.writestr("d/a.txt", "a cat")

    def nothing_is_written(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(fetching.Copy, "append", nothing_is_written)
    (row,) = inspected(dataset_path(f"zip://d::{tmp_path / 'a.zip'}")).rows
    assert row.status == "rejected"
    assert re.search(r"it unpacks to 1,\d\d\d times its size, as no video does", row.reason)
