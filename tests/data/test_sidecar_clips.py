"""Folders of media with captions beside them, as tools write them."""

import json
from pathlib import Path
from typing import Any, Literal
from unicodedata import normalize

import pyarrow
import pyarrow.parquet
import pytest

from arachne.core.clip import Clip
from arachne.core.errors import DataError
from arachne.data.layouts import detected_layout, read_clips

pa: Any = pyarrow
pq: Any = pyarrow.parquet

ROW = {"url": "https://x", "caption": "a cat", "key": "0000000_00000", "status": "success"}


def _video2dataset(root: Path, num_shards: int, is_table_only: bool = False) -> None:
    """What video2dataset writes with `output_format="files"`."""
    for shard in range(num_shards):
        folder = root / f"{shard:05}"
        folder.mkdir()
        key = f"{shard:05}00_00000"
        pq.write_table(pa.Table.from_pylist([ROW]), root / f"{shard:05}.parquet")
        (root / f"{shard:05}_stats.json").write_text('{"count": 1}')
        (folder / f"{key}.json").write_text(json.dumps(ROW))
        if not is_table_only:
            (folder / f"{key}.mp4").touch()
            (folder / f"{key}.txt").write_text(f"caption {shard}")


def test_what_video2dataset_wrote_is_read_by_its_captions(tmp_path: Path) -> None:
    _video2dataset(tmp_path, 2)
    assert detected_layout(tmp_path).name == (
        "sidecar captions (not read: 00000.parquet and 1 more, without a column for files)"
    )
    assert read_clips(tmp_path, "error") == (
        Clip(path="00000/0000000_00000.mp4", caption="caption 0"),
        Clip(path="00001/0000100_00000.mp4", caption="caption 1"),
    )


def test_ids_that_video2dataset_kept_of_its_input_name_no_clips(tmp_path: Path) -> None:
    _video2dataset(tmp_path, 1)
    row = ROW | {"videoID": "AJp_ANXoGoM", "timestamp": ["0:00:01.0", "0:00:02.0"]}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "00000.parquet")
    assert [clip.caption for clip in read_clips(tmp_path, "error")] == ["caption 0"]


@pytest.mark.parametrize("forms", [("NFC", "NFD"), ("NFD", "NFC")])
def test_a_caption_s_file_may_be_spelled_with_other_code_points(
    tmp_path: Path, forms: tuple[Literal["NFC", "NFD"], ...]
) -> None:
    media, text = (normalize(form, "caf\u00e9") for form in forms)
    (tmp_path / f"{media}.mp4").touch()
    (tmp_path / f"{text}.txt").write_text("a cup")
    (tmp_path / "cafe.txt").write_text("another")
    assert read_clips(tmp_path, "error") == (Clip(path=f"{media}.mp4", caption="a cup"),)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("stats.csv", "key,frames\na,3\n"),
        ("log.jsonl", '\n{"key": "a"}\n{"key": "b"}\n'),
        ("a.csv", ""),
    ],
)
def test_other_tables_beside_captions_are_not_the_dataset(
    tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / "a.mp4").touch()
    (tmp_path / "a.txt").write_text("a cat")
    (tmp_path / name).write_text(text)
    assert read_clips(tmp_path, "error") == (Clip(path="a.mp4", caption="a cat"),)
    assert name in detected_layout(tmp_path).name


def test_an_arrow_table_beside_captions_is_not_the_dataset_either(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").touch()
    (tmp_path / "a.txt").write_text("a cat")
    table = pa.Table.from_pylist([ROW])
    with pa.ipc.new_stream(str(tmp_path / "log.arrow"), table.schema) as file:
        file.write_table(table)
    assert [clip.caption for clip in read_clips(tmp_path, "error")] == ["a cat"]


def test_a_table_without_a_column_for_files_is_refused_where_no_captions_are(
    tmp_path: Path,
) -> None:
    _video2dataset(tmp_path, 1, is_table_only=True)
    with pytest.raises(DataError, match=r"00000\.parquet has no column for the file .* found: url"):
        read_clips(tmp_path, "error")


@pytest.mark.parametrize("name", ["metadata.csv", "clips.csv"])
def test_a_table_that_was_meant_is_never_passed_over(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.mp4").touch()
    (tmp_path / "a.txt").write_text("not this one")
    columns = "film,caption" if name == "metadata.csv" else "video,words"
    (tmp_path / name).write_text(f"{columns}\na.mp4,a cat\n")
    with pytest.raises(DataError, match=r"no column for the file|has no caption"):
        read_clips(tmp_path, "error")
