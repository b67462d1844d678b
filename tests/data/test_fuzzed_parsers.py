"""Whatever lies in a dataset's folder is read, or refused in one line; nothing else is opened.

200 examples each; 5,000 in the slow suite.
"""

import io
import json
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from arachne.core.bucket import Bucket
from arachne.core.clip import Clip, TimeSpan
from arachne.core.errors import DataError
from arachne.core.families import family_named
from arachne.core.ledger import Ledger, LedgerRow
from arachne.data.inspect import inspect_clips
from arachne.data.layouts import read_clips
from arachne.data.manifest import read_manifest, write_manifest
from arachne.data.probe import probe
from arachne.data.remote_path import dataset_path
from arachne.data.shapes import ShapeRules
from arachne.data.source_media import source_media
from tests.data.media import Look, write_ramp

pa: Any = pyarrow
pq: Any = pyarrow.parquet

EXAMPLES = pytest.mark.parametrize(
    "num_examples", [200, pytest.param(5000, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])]
)
RULES = ShapeRules(fps=16.0, resolution=64, frame_buckets=(1, 5))
WAN = family_named("wan").geometry

flips = st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), min_size=1, max_size=6)
"""(place modulo the length, new value) of bytes that are changed."""


def _damaged(content: bytes, changes: list[tuple[int, int]], kept_share: float) -> bytes:
    found = bytearray(content)
    for at, value in changes:
        found[at % len(found)] = value
    return bytes(found[: max(1, round(len(found) * kept_share))])


def _outcome(read: Callable[[], Any]) -> Any:
    """What reading gives; None if it is refused, in one line."""
    said = ""
    try:
        return read()
    except DataError as error:
        said = str(error)
    assert said
    assert "\n" not in said
    return None


def _read(root: Path) -> None:
    """A dataset is listed, and each of its files opened, or it is refused."""
    clips = _outcome(lambda: read_clips(root, "empty"))
    for clip in (clips or ())[:20]:
        assert clip.path
        file = _outcome(lambda path=clip.path: source_media(root, path))
        if file is not None:
            assert file.path.is_relative_to(root.resolve())
            with file.open() as opened:
                assert len(opened.read()) == file.num_bytes


def _law(num_examples: int, **strategies: Any) -> Callable[[Callable[..., None]], None]:
    """Run a law on so many examples."""

    def run(law: Callable[..., None]) -> None:
        settings(max_examples=num_examples, deadline=None, database=None)(
            given(**strategies)(law)
        )()

    return run


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
columns = st.sampled_from(
    ["video", "path", "image", "videoID", "caption", "caption_2", "start", "end", "timestamp"]
)
rows = st.lists(st.dictionaries(columns, json_values, max_size=5), max_size=4)


@EXAMPLES
@pytest.mark.parametrize("suffix", ["csv", "json", "jsonl"])
def test_any_text_table(num_examples: int, suffix: str, tmp_path: Path) -> None:
    table = tmp_path / f"metadata.{suffix}"

    @_law(num_examples, rows=rows, noise=st.binary(max_size=6), at=st.integers(0, 400))
    def _(rows: list[dict[str, Any]], noise: bytes, at: int) -> None:
        text = {
            "csv": "video,caption,start,end\n"
            + "\n".join(",".join(map(str, row.values())) for row in rows),
            "json": json.dumps(rows),
            "jsonl": "\n".join(map(json.dumps, rows)),
        }[suffix].encode("utf-8", "surrogatepass")
        table.write_bytes(text[:at] + noise + text[at:])
        _read(tmp_path)


@EXAMPLES
def test_any_lists_and_sidecars(num_examples: int, tmp_path: Path) -> None:
    for folder in ("lists", "sidecars"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.mp4").write_bytes(b"x")

    @_law(num_examples, one=st.binary(max_size=40), two=st.binary(max_size=40))
    def _(one: bytes, two: bytes) -> None:
        for name, content in (("videos.txt", one), ("prompts.txt", two)):
            (tmp_path / "lists" / name).write_bytes(content)
        for name, content in (("a.txt", one), ("a.2.txt", two)):
            (tmp_path / "sidecars" / name).write_bytes(content)
        _read(tmp_path / "lists")
        _read(tmp_path / "sidecars")


def _tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in {
            "a.png": b"x" * 700,
            "a.json": b'{"caption": "y"}',
            "猫.gif": b"z",
        }.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo("l.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        tar.addfile(link)
    return buffer.getvalue()[:7168]


@EXAMPLES
def test_any_damage_of_a_tar(num_examples: int, tmp_path: Path) -> None:
    whole = _tar()

    @_law(
        num_examples,
        changes=flips,
        kept_share=st.floats(0, 1),
        is_resummed=st.booleans(),
    )
    def _(changes: list[tuple[int, int]], kept_share: float, is_resummed: bool) -> None:
        content = bytearray(_damaged(whole, changes, kept_share))
        for at in range(0, len(content) - 512, 512) if is_resummed else ():
            header = content[at : at + 512]
            if header[257:262] == b"ustar":
                total = sum(header) - sum(header[148:156]) + 8 * 32
                content[at + 148 : at + 156] = b"%06o\0 " % total
        (tmp_path / "s.tar").write_bytes(content)
        _read(tmp_path)


def _media_table() -> Any:
    media = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return pa.Table.from_pylist(
        [
            {"video": {"bytes": b"x" * 300, "path": "a.mp4"}, "caption": "a", "start": 1.0},
            {"video": {"bytes": None, "path": "b.mp4"}, "caption": "b", "start": None},
        ],
        schema=pa.schema([("video", media), ("caption", pa.string()), ("start", pa.float64())]),
    )


def _columnar(kind: str) -> bytes:
    sink = io.BytesIO()
    if kind == "parquet":
        pq.write_table(_media_table(), sink, row_group_size=1)
    else:
        new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with new(sink, _media_table().schema) as writer:
            writer.write_table(_media_table())
    return sink.getvalue()


@EXAMPLES
@pytest.mark.parametrize("kind", ["parquet", "stream", "file"])
def test_any_damage_of_a_table_with_media(num_examples: int, kind: str, tmp_path: Path) -> None:
    whole = _columnar(kind)
    table = tmp_path / f"metadata.{'parquet' if kind == 'parquet' else 'arrow'}"

    @_law(num_examples, changes=flips, kept_share=st.just(1.0) | st.floats(0, 1))
    def _(changes: list[tuple[int, int]], kept_share: float) -> None:
        table.unlink(missing_ok=True)  # a new file, as every download is
        table.write_bytes(_damaged(whole, changes, kept_share))
        _read(tmp_path)


@EXAMPLES
def test_any_state_of_a_saved_dataset(num_examples: int, tmp_path: Path) -> None:
    (tmp_path / "data.arrow").write_bytes(_columnar("stream"))
    names = st.sampled_from(["data.arrow", "../x.arrow", "/etc/hostname", "", "data.arrow/0/video"])
    files = st.lists(st.fixed_dictionaries({"filename": names | json_values}) | json_values)

    @_law(num_examples, state=st.fixed_dictionaries({"_data_files": files}) | json_values)
    def _(state: Any) -> None:
        text = json.dumps(state).encode("utf-8", "surrogatepass")
        (tmp_path / "state.json").write_bytes(text)
        _read(tmp_path)


@EXAMPLES
def test_any_damage_of_a_manifest(num_examples: int, tmp_path: Path) -> None:
    path = tmp_path / "manifest.parquet"
    row = LedgerRow(
        clip=Clip(path="a.mp4", caption="a", span=TimeSpan(start_s=0.0, end_s=1.0)),
        status="kept",
        arithmetic="16f@16 → 16f@16 → 5",
        reason="",
        bucket=Bucket(width=64, height=48, frames=5),
        num_tokens=24,
        content="0" * 64,
    )
    write_manifest(Ledger(rows=(row, row)), path)
    whole = path.read_bytes()

    @_law(num_examples, changes=flips, kept_share=st.just(1.0) | st.floats(0, 1))
    def _(changes: list[tuple[int, int]], kept_share: float) -> None:
        path.write_bytes(_damaged(whole, changes, kept_share))
        ledger = _outcome(lambda: read_manifest(path))
        assert ledger is None or isinstance(ledger, Ledger)


@EXAMPLES
@pytest.mark.parametrize(
    ("name", "codec"), [("a.mp4", "libx264"), ("a.mkv", "libx264"), ("a.avi", "mpeg4")]
)
def test_any_damage_of_a_video(num_examples: int, name: str, codec: str, tmp_path: Path) -> None:
    path = write_ramp(tmp_path / name, 6, Look(codec=codec))
    whole = path.read_bytes()

    @_law(num_examples, changes=flips, kept_share=st.just(1.0) | st.floats(0, 1))
    def _(changes: list[tuple[int, int]], kept_share: float) -> None:
        path.write_bytes(_damaged(whole, changes, kept_share))
        facts = _outcome(lambda: probe(path))
        assert facts is None or min(facts.num_frames, facts.width, facts.height) >= 1


_opened: list[str] | None = None


def _note_opened(event: str, arguments: tuple[Any, ...]) -> None:
    if _opened is None:
        return
    if event == "open" and isinstance(arguments[0], str | bytes):
        _opened.append(arguments[0].decode() if isinstance(arguments[0], bytes) else arguments[0])
    elif event.startswith(("socket.connect", "socket.getaddrinfo", "subprocess")):
        _opened.append(event)


sys.addaudithook(_note_opened)


@contextmanager
def _watched() -> Iterator[list[str]]:
    """What Python opens, and whom it calls, in the block."""
    global _opened
    _opened = []
    try:
        yield _opened
    finally:
        _opened = None


pieces = st.sampled_from(
    ["..", ".", "", "/", "\\", "~", "\0", "\n", "concat:", "http:", "file:", "C:", "|", "//", "0"]
)
names = st.sampled_from(
    [
        "out",
        "link.mp4",
        "secret.mp4",
        "secret.tar",
        "secret.arrow",
        "a.mp4",
        "in.tar",
        "in.arrow",
        "video",
    ]
)


@EXAMPLES
def test_no_path_leaves_the_root_or_calls_anyone(num_examples: int, tmp_path: Path) -> None:
    root = tmp_path / "root"
    video = write_ramp(root / "a.mp4", 6).read_bytes()
    (root / "in.tar").write_bytes(_tar())
    (root / "in.arrow").write_bytes(_columnar("stream"))
    (tmp_path / "secret.mp4").write_bytes(video)
    (tmp_path / "secret.tar").write_bytes(_tar())
    (tmp_path / "secret.arrow").write_bytes(_columnar("stream"))
    (root / "link.mp4").symlink_to(tmp_path / "secret.mp4")
    (root / "secret.tar").symlink_to(tmp_path / "secret.tar")
    (root / "secret.arrow").symlink_to(tmp_path / "secret.arrow")
    (root / "out").symlink_to(tmp_path)
    inspect_clips(root, [Clip(path="a.mp4", caption="")], RULES, WAN, 1)  # imports are done

    @_law(
        num_examples,
        parts=st.lists(pieces | names, min_size=1, max_size=6),
        joint=st.sampled_from("/\\"),
    )
    def _(parts: list[str], joint: str) -> None:
        path = joint.join(parts)
        with _watched() as opened:
            (row,) = inspect_clips(root, [Clip(path=path, caption="")], RULES, WAN, 1).rows
        real = root.resolve()
        assert all(Path(name).resolve().is_relative_to(real) for name in opened), (path, opened)
        if row.content:
            assert source_media(root, path).path.is_relative_to(real)


@EXAMPLES
def test_no_path_leaves_the_address(
    num_examples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    video = write_ramp(tmp_path / "a.mp4", 6).read_bytes()
    for folder in ("/fuzzed/", "/"):
        for name, content in (("a.mp4", video), ("secret.mp4", video), ("in.tar", _tar())):
            MemoryFileSystem().pipe(folder + name, content)
    real_open, opened = MemoryFileSystem._open, list[str]()

    def noted(self: MemoryFileSystem, path: str, *words: Any, **options: Any) -> Any:
        opened.append(path)
        return real_open(self, path, *words, **options)

    monkeypatch.setattr(MemoryFileSystem, "_open", noted)
    root = dataset_path("memory://fuzzed")
    parts_of_addresses = st.sampled_from(["memory:", "::memory:", "%2e%2e", "fuzzed", "*"])

    @_law(
        num_examples,
        parts=st.lists(pieces | names | parts_of_addresses, min_size=1, max_size=6),
        joint=st.sampled_from("/\\"),
    )
    def _(parts: list[str], joint: str) -> None:
        opened.clear()
        inspect_clips(root, [Clip(path=joint.join(parts), caption="")], RULES, WAN, 1)
        assert all(path.startswith("/fuzzed/") for path in opened), (parts, opened)
