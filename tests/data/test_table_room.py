"""Tables that are small files and no small tables."""

import os
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from arachne.core.errors import DataError
from arachne.core.ledger import Ledger
from arachne.data import table_room
from arachne.data.captions import read_text
from arachne.data.columnar_table import read_arrow, read_parquet
from arachne.data.manifest import read_manifest, write_manifest
from tests.data.made_rows import REJECTED

pa: Any = pyarrow
pq: Any = pyarrow.parquet


@pytest.fixture
def table(tmp_path: Path) -> Path:
    columns = {
        "video": ["a.mp4", "b.mp4", None],
        "caption": ["the same words", "the same words", "others"],
        "more": [["x"], [], None],
        "large": ["y" * 50_000, "", ""],
    }
    pq.write_table(pa.table(columns), tmp_path / "x.parquet", row_group_size=2)
    return tmp_path / "x.parquet"


def test_more_rows_than_memory_holds_are_refused_before_they_are_read(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_room, "_ROW_BYTES", 10**12)
    with pytest.raises(
        DataError, match=r"^x\.parquet has 3 rows, which take at least 3 TB .*split"
    ):
        read_parquet(table, "x.parquet", lambda _: True)


def test_values_count_uncompressed_and_only_those_that_are_read(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_room.os, "sysconf", lambda _: 200)  # 40 kB
    read_parquet(table, "x.parquet", lambda name: name != "large")
    with pytest.raises(DataError, match="this machine has 40 kB"):
        read_parquet(table, "x.parquet", lambda name: name == "large")


def test_arrow_rows_of_nothing_count_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.table({"video": pa.nulls(1000)})
    path = str(tmp_path / "x.arrow")
    with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, rows.schema) as writer:
        writer.write_table(rows)
    _, read = read_arrow(tmp_path / "x.arrow", "x.arrow", lambda _: True)
    assert len(read) == 1000
    monkeypatch.setattr(table_room, "_ROW_BYTES", 10**12)
    with pytest.raises(DataError, match=r"^x\.arrow has 1,000 rows, which take at least"):
        read_arrow(tmp_path / "x.arrow", "x.arrow", lambda _: True)


def test_a_text_larger_than_memory_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "metadata.csv"
    path.touch()
    os.truncate(path, 2**43)
    with pytest.raises(DataError, match=r"^metadata\.csv has .*which have to fit in memory"):
        read_text(path, "metadata.csv")


def test_equal_texts_of_a_table_are_one_object(table: Path) -> None:
    _, rows = read_parquet(table, "x.parquet", lambda name: name != "large")
    assert [row["video"] for row in rows] == ["a.mp4", "b.mp4", None]
    assert [row["caption"] for row in rows] == ["the same words", "the same words", "others"]
    assert [row["more"] for row in rows] == [["x"], [], None]
    assert rows[0]["caption"] is rows[1]["caption"]


def test_a_ledger_is_refused_as_other_tables_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_manifest(Ledger(rows=(REJECTED,)), tmp_path / "x.parquet")
    assert read_manifest(tmp_path / "x.parquet").rows == (REJECTED,)
    monkeypatch.setattr(table_room, "_ROW_BYTES", 10**12)
    with pytest.raises(DataError, match=r"manifest '.*x\.parquet' cannot be read: it has 1 rows?,"):
        read_manifest(tmp_path / "x.parquet")
