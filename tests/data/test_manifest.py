from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arachne.core.bucket import Bucket
from arachne.core.clip import Clip, TimeSpan
from arachne.core.errors import DataError
from arachne.core.ledger import Ledger, LedgerRow
from arachne.data.inspect import rejected
from arachne.data.manifest import read_manifest, write_manifest
from tests.forbidden_files import forbidden

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
SPANS = st.none() | st.tuples(st.floats(0, 1e6), st.floats(1e-3, 1e6)).map(
    lambda pair: TimeSpan(start_s=pair[0], end_s=pair[0] + pair[1])
)
BUCKETS = st.builds(
    Bucket, width=st.integers(1, 20000), height=st.integers(1, 20000), frames=st.integers(1, 999)
)


@st.composite
def ledger_rows(draw: st.DrawFn) -> LedgerRow:
    status = draw(st.sampled_from(["kept", "trimmed", "rejected"]))
    is_rejected = status == "rejected"
    return LedgerRow(
        clip=Clip(
            path=draw(TEXT),
            caption=draw(TEXT),
            span=draw(SPANS),
            piece=draw(SPANS),
            other_captions=tuple(draw(st.lists(TEXT, max_size=2))),
            dataset=draw(TEXT),
        ),
        status=status,
        arithmetic=draw(TEXT),
        reason=draw(TEXT),
        bucket=None if is_rejected else draw(BUCKETS),
        num_tokens=0 if is_rejected else draw(st.integers(1, 2**40)),
        content=draw(TEXT),
        num_frames=draw(st.integers(0, 2**20)),
        is_decoded=draw(st.booleans()),
        stamp=draw(TEXT),
    )


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(ledger_rows(), max_size=5))
def test_a_ledger_comes_back_as_it_was(tmp_path: Path, rows: list[LedgerRow]) -> None:
    ledger = Ledger(rows=tuple(rows))
    write_manifest(ledger, tmp_path / "manifest.parquet")
    again = read_manifest(tmp_path / "manifest.parquet")
    assert again == ledger
    assert [row.stamp for row in again.rows] == [row.stamp for row in rows], "are not compared"


def test_a_damaged_or_missing_manifest_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "manifest.parquet"
    with pytest.raises(DataError, match=r"manifest .* cannot be read.*; restore it"):
        read_manifest(path)
    write_manifest(Ledger(rows=()), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"manifest .* cannot be read.*; restore it"):
        read_manifest(path)


def test_a_manifest_that_may_not_be_read_is_not_to_be_deleted(tmp_path: Path) -> None:
    path = tmp_path / "manifest.parquet"
    write_manifest(Ledger(rows=()), path)
    refused = (
        r"manifest\.parquet' cannot be read: Permission denied; let this user read and write it$"
    )
    with forbidden(path), pytest.raises(DataError, match=refused):
        read_manifest(path)


def test_half_a_character_is_one_line(tmp_path: Path) -> None:
    row = rejected(Clip(path="a.mp4", caption="cut \ud83d"), "x")
    with pytest.raises(DataError, match="half a character"):
        write_manifest(Ledger(rows=(row,)), tmp_path / "manifest.parquet")


def test_another_table_is_no_manifest(tmp_path: Path) -> None:
    table = pa.table({"path": ["a"]})
    for version, message in (
        (None, "it is of version none; 2, 3 and 4 are read"),
        ("5", "it is of version 5; 2, 3 and 4 are read"),
        ("3", "it has other columns"),
    ):
        named = table.replace_schema_metadata({"arachne_manifest": version} if version else None)
        pq.write_table(named, tmp_path / "a.parquet")
        with pytest.raises(DataError, match=message):
            read_manifest(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("version", "unknown"),
    [
        ("3", {"stamp": ""}),
        ("2", {"num_frames": 0, "is_decoded": False, "stamp": ""}),
    ],
)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(ledger_rows(), max_size=5))
def test_a_manifest_of_an_earlier_version_is_read_without_what_it_does_not_say(
    tmp_path: Path, version: str, unknown: dict[str, object], rows: list[LedgerRow]
) -> None:
    path = tmp_path / "manifest.parquet"
    write_manifest(Ledger(rows=tuple(rows)), path)
    table = pq.read_table(path).drop_columns(list(unknown))
    pq.write_table(table.replace_schema_metadata({"arachne_manifest": version}), path)
    again = read_manifest(path)
    assert again == Ledger(rows=tuple(replace(row, **unknown) for row in rows))
    assert {row.stamp for row in again.rows} <= {""}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"width": None}, "clip 'a.mp4' is kept, but its shape is ?x48x17"),
        (dict.fromkeys(("width", "height", "frames")), "is kept, but its shape is none"),
        ({"status": "rejected"}, "clip 'a.mp4' is rejected, but its shape is 64x48x17"),
        ({"frames": 0}, "bucket 64x48x0: width, height and frames must each be at least 1"),
        ({"start_s": 3.0, "end_s": 1.0}, "span 3.00-1.00s must start at 0 s or later"),
    ],
)
def test_a_shape_that_cannot_be_is_said_in_words(tmp_path: Path, changes, words: str) -> None:
    path = tmp_path / "manifest.parquet"
    row = LedgerRow(
        clip=Clip(path="a.mp4", caption=""),
        status="kept",
        arithmetic="",
        reason="",
        bucket=Bucket(width=64, height=48, frames=17),
        num_tokens=1,
        content="",
    )
    write_manifest(Ledger(rows=(row,)), path)
    table = pq.read_table(path)
    changed = [each | changes for each in table.to_pylist()]
    pq.write_table(pa.Table.from_pylist(changed, schema=table.schema), path)
    with pytest.raises(DataError) as raised:
        read_manifest(path)
    assert words in str(raised.value)
    assert "LedgerRow" not in str(raised.value)
