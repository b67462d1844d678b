"""Datasets of Hugging Face on disk: Arrow and Parquet, with media beside them or inside."""

import io
import json
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from arachne.core.bucket import Bucket
from arachne.core.clip import Clip, TimeSpan
from arachne.core.errors import DataError
from arachne.core.families import family_named
from arachne.core.ledger import Ledger
from arachne.data import columnar_table, parquet_cells
from arachne.data.arrow_cells import arrow_cell
from arachne.data.decode import decode_clip
from arachne.data.file_identity import content_of
from arachne.data.inspect import inspect_dataset
from arachne.data.layouts import detected_layout, read_clips
from arachne.data.probe import probe
from arachne.data.shapes import ShapeRules
from arachne.data.source_media import source_media
from tests.data.media import write_ramp

pa: Any = pyarrow
pq: Any = pyarrow.parquet

WAN = family_named("wan").geometry
RULES = ShapeRules(fps=16.0, resolution=64, frame_buckets=(1, 17, 33))
MEDIA = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
SCHEMA = pa.schema([("video", MEDIA), ("image", MEDIA), ("caption", pa.string())])


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ramp(tmp_path_factory.mktemp("made") / "a.mp4", 40)


@pytest.fixture(scope="module")
def photo() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 48), (200, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def _rows(video: Path, photo: bytes) -> Any:
    """A video inside, a picture inside, a path, and a path that leaves."""
    return pa.Table.from_pylist(
        [
            {"video": {"bytes": video.read_bytes(), "path": "a.mp4"}, "caption": "inside"},
            {"image": {"bytes": photo, "path": None}, "caption": "a picture"},
            {"video": {"bytes": None, "path": "clips/b.mp4"}, "caption": "beside"},
            {"video": {"bytes": None, "path": str(video)}, "caption": "elsewhere"},
        ],
        schema=SCHEMA,
    )


def _write_arrow(
    path: Path, table: Any, *, is_stream: bool = True, compression: Any = None
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = pa.ipc.new_stream if is_stream else pa.ipc.new_file
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as file, new(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=2)


def _write_parquet(path: Path, table: Any, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=2, **options)


def _save_to_disk(folder: Path, *tables: Any) -> None:
    """What `datasets.Dataset.save_to_disk` writes."""
    names = [f"data-{k:05}-of-{len(tables):05}.arrow" for k in range(len(tables))]
    for name, table in zip(names, tables, strict=True):
        _write_arrow(folder / name, table)
    (folder / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": name} for name in names], "_split": None})
    )
    (folder / "dataset_info.json").write_text(json.dumps({"features": {}}))


def _inspect(root: Path, num_workers: int = 1) -> Ledger:
    return inspect_dataset(root, RULES, WAN, "error", num_workers)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("metadata.parquet", {"compression": "snappy"}),
        ("metadata.parquet", {"compression": "zstd"}),
        ("metadata.parquet", {"compression": "none", "use_dictionary": False}),
        ("metadata.parquet", {"write_statistics": False}),
        ("metadata.arrow", {"is_stream": True}),
        ("metadata.arrow", {"is_stream": False}),
    ],
)
def test_media_inside_a_table_are_the_clips_that_files_would_be(
    tmp_path: Path, video: Path, photo: bytes, name: str, options: dict[str, Any]
) -> None:
    root = tmp_path / "data"
    write = _write_parquet if name.endswith(".parquet") else _write_arrow
    write(root / name, _rows(video, photo), **options)
    (root / "clips").mkdir()
    (root / "clips" / "b.mp4").write_bytes(video.read_bytes())
    before = sorted(root.rglob("*"))
    assert [clip.path for clip in read_clips(root, "error")] == [
        f"{name}/0/video",
        f"{name}/1/image",
        "clips/b.mp4",
        str(video),
    ]
    rows = _inspect(root).rows
    assert [(row.status, str(row.bucket)) for row in rows[:3]] == [
        ("trimmed", "64x48x33"),
        ("kept", "64x48x1"),
        ("trimmed", "64x48x33"),
    ]
    assert "is absolute" in rows[3].reason
    assert rows[0].content == rows[2].content == content_of(video)
    inside = source_media(root, f"{name}/0/video")
    assert probe(inside) == probe(video)
    bucket = Bucket(width=64, height=48, frames=17)
    span = TimeSpan(start_s=1.0, end_s=2.5)
    assert np.array_equal(
        decode_clip(inside, span, bucket, 16.0), decode_clip(video, span, bucket, 16.0)
    )
    assert sorted(root.rglob("*")) == before


def test_processes_give_the_same_ledger_as_one_process(
    tmp_path: Path, video: Path, photo: bytes
) -> None:
    _write_parquet(tmp_path / "metadata.parquet", _rows(video, photo))
    assert _inspect(tmp_path, 2) == _inspect(tmp_path)


def test_plain_bytes_and_spans_work_too(tmp_path: Path, video: Path) -> None:
    table = pa.table(
        {
            "video": pa.array([video.read_bytes(), None], pa.large_binary()),
            "text": ["x", "y"],
            "start": [0.5, None],
            "end": [1.5, None],
            "path": [None, "b.mp4"],
        }
    )
    for name, write in (("a.parquet", _write_parquet), ("b.arrow", _write_arrow)):
        write(tmp_path / name / name, table)
        clips = read_clips(tmp_path / name, "error")
        assert clips == (
            Clip(path=f"{name}/0/video", caption="x", span=TimeSpan(start_s=0.5, end_s=1.5)),
            Clip(path="b.mp4", caption="y"),
        )
        assert _inspect(tmp_path / name).rows[0].arithmetic == "16f@16 → 16f@16 → 1"


def test_what_save_to_disk_wrote_is_read_in_its_order(
    tmp_path: Path, video: Path, photo: bytes
) -> None:
    table = _rows(video, photo)
    _save_to_disk(tmp_path / "one", table.slice(1, 1), table.slice(0, 1))
    (tmp_path / "one" / "cache-0123.arrow").write_bytes(b"left over by a map")
    assert detected_layout(tmp_path / "one").name == "saved dataset, 2 Arrow files"
    assert [(c.path, c.caption) for c in read_clips(tmp_path / "one", "error")] == [
        ("data-00000-of-00002.arrow/0/image", "a picture"),
        ("data-00001-of-00002.arrow/0/video", "inside"),
    ]
    assert [row.status for row in _inspect(tmp_path / "one").rows] == ["kept", "trimmed"]


def test_of_several_splits_train_is_read_and_the_others_are_named(
    tmp_path: Path, video: Path, photo: bytes
) -> None:
    table = _rows(video, photo)
    for split in ("train", "test"):
        _save_to_disk(tmp_path / split, table.slice(0, 1))
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["test", "train"]}')
    name = "saved dataset, split train (not read: test), 1 Arrow file"
    assert detected_layout(tmp_path).name == name
    (clip,) = read_clips(tmp_path, "error")
    assert clip.path == "train/data-00000-of-00001.arrow/0/video"
    assert _inspect(tmp_path).counts["trimmed"] == 1
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["test", "validation"]}')
    with pytest.raises(DataError, match=r"2 splits: test, validation; none is called train: name"):
        read_clips(tmp_path, "error")
    assert len(read_clips(tmp_path / "test", "error")) == 1


@pytest.mark.parametrize("folder", ["", "data/"])
def test_shards_of_a_download_are_one_dataset(
    tmp_path: Path, video: Path, photo: bytes, folder: str
) -> None:
    table = _rows(video, photo)
    for k in range(2):
        _write_parquet(tmp_path / f"{folder}train-{k:05}-of-00002.parquet", table.slice(k, 1))
    _write_parquet(tmp_path / f"{folder}test-00000-of-00001.parquet", table.slice(0, 1))
    (tmp_path / "README.md").touch()
    assert detected_layout(tmp_path).name == (
        f"2 sharded tables {folder}train-*, split train (not read: test)"
    )
    assert [clip.caption for clip in read_clips(tmp_path, "error")] == ["inside", "a picture"]
    assert _inspect(tmp_path).counts == {"kept": 1, "trimmed": 1, "rejected": 0}
    (tmp_path / f"{folder}train-00001-of-00002.parquet").unlink()
    assert "1 sharded table (of 2; the others are not here)" in detected_layout(tmp_path).name
    one = tmp_path / f"{folder}test-00000-of-00001.parquet"
    assert [clip.path for clip in read_clips(one, "error")] == [f"{one.name}/0/video"]


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_row_without_media_is_rejected_and_the_others_go_on(
    tmp_path: Path, video: Path, photo: bytes, suffix: str
) -> None:
    nothing = pa.Table.from_pylist([{"caption": "x"}], schema=SCHEMA)
    table = pa.concat_tables([nothing, _rows(video, photo).slice(0, 1)]).combine_chunks()
    path = tmp_path / f"metadata.{suffix}"
    write = _write_parquet if suffix == "parquet" else _write_arrow
    write(path, table)
    empty, kept = inspect_dataset(tmp_path, RULES, WAN, "error", 1).rows
    assert (empty.status, empty.reason) == ("rejected", f"{path.name} row 0 names no file")
    assert (kept.clip.path, kept.bucket is None) == (f"{path.name}/1/video", False)


def test_an_offset_buffer_that_ends_within_a_number_is_no_traceback(
    tmp_path: Path, video: Path, photo: bytes
) -> None:
    path = tmp_path / "metadata.arrow"
    _write_arrow(path, _rows(video, photo))
    whole = bytearray(path.read_bytes())
    lengths = [at for at in range(8, 2000) if whole[at : at + 8] == (12).to_bytes(8, "little")]
    assert lengths, "two rows in a batch have three offsets of four bytes"
    for at in lengths:
        damaged = whole.copy()
        damaged[at] = 15
        path.write_bytes(damaged)
        with suppress(DataError):
            arrow_cell(path, 0, "video")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("metadata.parquet/9/video", "'metadata.parquet' has no row 9"),
        ("metadata.parquet/0/film", "no column 'film' that holds media"),
        ("metadata.parquet/0/caption", "no column 'caption' that holds media"),
        ("metadata.parquet/1/video", "row 1 of 'metadata.parquet' holds nothing"),
        ("b.arrow/9/video", "'b.arrow' has no row 9"),
        ("b.arrow/0/film", "no column 'film' that holds media"),
        ("b.arrow/1/video", "row 1 of 'b.arrow' holds nothing"),
        ("../x.parquet/0/video", "holds '..'"),
        ("/x.parquet/0/video", "is absolute"),
        ("link.arrow/0/video", "a link that leaves"),
        ("none.arrow/0/video", "is not a file"),
        ("text.arrow/0/video", "is not Arrow"),
        ("text.parquet/0/video", "cannot be read as Parquet"),
        ("packed.arrow/0/video", "are compressed"),
    ],
)
def test_cells_that_are_not_there_are_refused_by_name(
    tmp_path: Path, video: Path, photo: bytes, path: str, message: str
) -> None:
    root = tmp_path / "data"
    _write_parquet(root / "metadata.parquet", _rows(video, photo))
    _write_arrow(root / "b.arrow", _rows(video, photo))
    _write_arrow(root / "packed.arrow", _rows(video, photo), compression="lz4")
    _write_arrow(tmp_path / "out.arrow", _rows(video, photo))
    (root / "link.arrow").symlink_to(tmp_path / "out.arrow")
    for name in ("text.arrow", "text.parquet"):
        (root / name).write_text("no table")
    with pytest.raises(DataError, match=message):
        source_media(root, path)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("{", "state.json is not JSON"),
        ("[]", "has no list '_data_files'"),
        ('{"_data_files": [7]}', "does not name its files"),
        ('{"_data_files": [{"filename": "../secret.arrow"}]}', r"holds '\.\.'"),
        ('{"_data_files": [{"filename": "gone.arrow"}]}', "is not a file"),
    ],
)
def test_a_saved_dataset_that_is_damaged_says_how(
    tmp_path: Path, video: Path, photo: bytes, state: str, message: str
) -> None:
    _save_to_disk(tmp_path / "data", _rows(video, photo))
    (tmp_path / "data" / "state.json").write_text(state)
    _write_arrow(tmp_path / "secret.arrow", _rows(video, photo))
    with pytest.raises(DataError, match=message):
        read_clips(tmp_path / "data", "error")


def test_a_row_group_that_does_not_fit_in_memory_is_refused_with_the_fix(
    tmp_path: Path, video: Path, photo: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    from arachne.data import parquet_cells

    monkeypatch.setattr(parquet_cells, "MAX_GROUP_BYTES", 1000)
    _write_parquet(tmp_path / "metadata.parquet", _rows(video, photo).slice(0, 1))
    (row,) = _inspect(tmp_path).rows
    assert "bytes of media, which must fit in memory" in row.reason
    assert "write smaller row groups" in row.reason
    _write_parquet(tmp_path / "metadata.parquet", _rows(video, photo))
    with pytest.raises(DataError, match=r"metadata\.parquet: row group 0 holds"):
        read_clips(tmp_path, "error")


@pytest.mark.parametrize(
    ("name", "write"), [("metadata.parquet", _write_parquet), ("metadata.arrow", _write_arrow)]
)
def test_columns_of_one_name_are_refused(tmp_path: Path, name: str, write: Any) -> None:
    write(tmp_path / name, pa.Table.from_arrays([pa.array(["a"])] * 2, names=["video", "video"]))
    with pytest.raises(DataError, match=r"metadata\.\w+ has 2 columns 'video'; keep one"):
        read_clips(tmp_path, "error")


@pytest.mark.parametrize(
    ("name", "write"), [("metadata.parquet", _write_parquet), ("metadata.arrow", _write_arrow)]
)
def test_columns_that_say_nothing_of_clips_are_not_loaded(
    tmp_path: Path, name: str, write: Any
) -> None:
    """Python has no type for a year so late, and features would fill the memory."""
    table = pa.table(
        {
            " Video ": ["a.mp4"],
            "Caption": ["x"],
            "caption_2": ["y"],
            "made": pa.array([2**30], pa.date32()),
            "features": [[0.5] * 8],
            "thumbnail": pa.array([b"x" * 9], pa.binary()),
        }
    )
    write(tmp_path / name, table)
    (clip,) = read_clips(tmp_path, "error")
    assert (clip.path, clip.captions) == ("a.mp4", ("x", "y"))


def test_a_value_that_python_has_no_type_for_is_refused_in_one_line(tmp_path: Path) -> None:
    table = pa.table({"video": ["a.mp4"], "end": pa.array([2**30], pa.date32())})
    _write_parquet(tmp_path / "metadata.parquet", table)
    with pytest.raises(DataError, match=r"metadata\.parquet cannot be read as Parquet: ") as caught:
        read_clips(tmp_path, "error")
    assert "\n" not in str(caught.value)


def _inspect_cell(root: Path) -> None:
    source_media(root, "x.parquet/0/video")


@pytest.mark.parametrize("use", [lambda root: read_clips(root, "empty"), _inspect_cell])
def test_a_footer_is_looked_at_before_it_is_used(
    tmp_path: Path, video: Path, photo: bytes, monkeypatch: pytest.MonkeyPatch, use: Any
) -> None:
    pq.write_table(_rows(video, photo), tmp_path / "x.parquet")

    def damaged(path: Path, name: str) -> None:
        raise DataError(f"{name} is damaged")

    monkeypatch.setattr(columnar_table, "check_footer", damaged)
    monkeypatch.setattr(parquet_cells, "check_footer", damaged)
    with pytest.raises(DataError, match=r"x\.parquet is damaged"):
        use(tmp_path)


def test_row_groups_that_hold_fewer_rows_than_the_table_says_are_refused() -> None:
    statistics = SimpleNamespace(has_null_count=True, null_count=0)
    column = SimpleNamespace(statistics=statistics, path="video.bytes")
    group = SimpleNamespace(num_rows=1, column=lambda _: column)

    class Metadata(SimpleNamespace):
        schema = type("Schema", (), {"__len__": lambda _: 1, "column": lambda *_: column})()

    metadata = Metadata(num_rows=2, num_row_groups=1, row_group=lambda _: group)
    with pytest.raises(DataError, match="x has 2 rows, and 1 in its parts"):
        parquet_cells.filled_rows(SimpleNamespace(metadata=metadata), "x", "video.bytes")
