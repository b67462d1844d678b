"""Footers of Parquet files are looked at by a process of its own, which some of them end."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from arachne.core.errors import DataError
from arachne.core.ledger import Ledger
from arachne.data import footer_look
from arachne.data.columnar_table import read_parquet
from arachne.data.footer_look import check_footer
from arachne.data.manifest import read_manifest, write_manifest
from tests.data.made_rows import REJECTED

pa: Any = pyarrow
pq: Any = pyarrow.parquet


@pytest.fixture(autouse=True)
def _no_looker() -> Iterator[None]:
    footer_look._end()
    yield
    footer_look._end()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = pa.table({"video": pa.array([b"x" * 9] * 4, pa.binary()), "caption": ["c"] * 4})
    pq.write_table(rows, tmp_path / "x.parquet", row_group_size=2)
    return tmp_path / "x.parquet"


def _looks_with(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let a shell script look in place of Python."""
    path = folder / "looker"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


def _pid() -> int:
    assert footer_look._looker is not None
    return footer_look._looker._process.pid


def test_one_process_looks_at_all_footers(table: Path) -> None:
    check_footer(table, "x.parquet")
    first = _pid()
    check_footer(table, "x.parquet")
    assert _pid() == first


def test_no_damaged_byte_of_a_footer_ends_this_process(
    table: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = table.read_bytes()
    start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    findings: set[str] = set()
    for place in range(start, len(whole) - 8, 7):
        table.write_bytes(whole[:place] + bytes([whole[place] ^ 0x28]) + whole[place + 1 :])
        try:
            check_footer(table, "x.parquet")
            findings.add("")
        except DataError as error:
            findings.add(str(error))
    assert findings == {"", "x.parquet cannot be read as Parquet: its footer is damaged"}
    assert capfd.readouterr() == ("", "")


def test_a_process_that_somebody_else_ended_says_nothing_about_a_footer(table: Path) -> None:
    check_footer(table, "x.parquet")
    first = _pid()
    os.kill(first, signal.SIGKILL)
    check_footer(table, "x.parquet")
    assert _pid() != first


def _deadly(path: Path, num_files: int) -> Iterator[bytes]:
    """Contents of a Parquet file with one byte changed that end who looks at their columns."""
    whole = path.read_bytes()
    start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    for value, place in product((0x28, 0x18, 0x60), range(start, len(whole) - 8)):
        content = whole[:place] + bytes([whole[place] ^ value]) + whole[place + 1 :]
        with footer_look._lock:
            footer_look._looker = footer_look._looker or footer_look._Looker()
        if not footer_look._looker.finding(content[start:]):
            footer_look._end()
            yield content
            num_files -= 1
        if not num_files:
            return


def test_a_deadly_footer_of_a_ledger_or_of_a_table_without_media_ends_nobody(
    tmp_path: Path,
) -> None:
    ledger, table = tmp_path / "ledger.parquet", tmp_path / "table.parquet"
    write_manifest(Ledger(rows=(REJECTED,)), ledger)
    pq.write_table(pa.table({"path": ["a.mp4", "b.mp4"], "caption": ["x", "y"]}), table)
    num_read = 0
    for path in (ledger, table):
        for content in list(_deadly(path, 2)):
            path.write_bytes(content)
            with suppress(DataError):
                read_manifest(path) if path == ledger else read_parquet(path, "x", lambda _: True)
            num_read += 1
    assert num_read == 4


@pytest.mark.parametrize("content", [b"", b"PAR1", b"junk" * 9, b"\xff" * 64])
def test_a_file_without_a_footer_is_refused(table: Path, content: bytes) -> None:
    table.write_bytes(content)
    with pytest.raises(DataError, match=r"^x\.parquet cannot be read as Parquet: its footer is"):
        check_footer(table, "x.parquet")


def test_a_footer_that_ends_the_process_is_damaged_and_another_process_looks_at_the_next(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        _looks_with(
            tmp_path,
            patched,
            "printf r; head -c 9 >/dev/null; echo terminate called >&2; kill -ABRT $$",
        )
        with pytest.raises(DataError, match=r"x\.parquet cannot be read as Parquet: its footer is"):
            check_footer(table, "x.parquet")
    check_footer(table, "x.parquet")


def test_a_process_that_cannot_start_says_nothing_about_a_footer(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        _looks_with(tmp_path, patched, "exit 1")
        with pytest.raises(DataError, match=r"^no process can be started that looks at Parquet"):
            check_footer(table, "x.parquet")
    check_footer(table, "x.parquet")


def test_nothing_of_the_folder_that_the_user_stands_in_is_run(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pyarrow", "io", "json", "select"):
        (tmp_path / f"{name}.py").write_text("open('was_run', 'w')\n")
    monkeypatch.chdir(tmp_path)
    check_footer(table, "x.parquet")
    assert not (tmp_path / "was_run").exists()


@pytest.mark.parametrize("num_bytes", [2**30, 2**32 - 1])
def test_a_footer_that_takes_the_memory_is_refused(tmp_path: Path, num_bytes: int) -> None:
    path = tmp_path / "x.parquet"
    with path.open("wb") as file:
        file.truncate(num_bytes + 8)  # holes, which take no room
        file.seek(0, 2)
        file.write(num_bytes.to_bytes(4, "little") + b"PAR1")
    words = r"its footer has [14]\.\d+ GB, and at most 134 MB are read"
    with pytest.raises(DataError, match=words):
        check_footer(path, "x.parquet")
    with pytest.raises(DataError, match=words):
        read_parquet(path, "x.parquet", lambda _: True)


def test_a_look_that_never_ends_is_ended_and_another_process_looks_at_the_next(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        _looks_with(tmp_path, patched, f"echo $$ > {tmp_path}/pid; exec sleep 60")
        patched.setattr(footer_look, "_LOOK_S", 1.0)
        with pytest.raises(
            DataError, match=r"x\.parquet .*footer of \d+ bytes takes more than 1 s"
        ):
            check_footer(table, "x.parquet")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    check_footer(table, "x.parquet")


def test_a_forked_process_has_its_own_and_leaves_its_parents_alone(table: Path) -> None:
    check_footer(table, "x.parquet")
    first = _pid()
    child = get_context("fork").Process(target=_look_with_another, args=(table, first))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    check_footer(table, "x.parquet")
    assert _pid() == first


def test_the_process_ends_with_the_one_that_asked_for_it(table: Path, tmp_path: Path) -> None:
    found = tmp_path / "pid"
    child = get_context("spawn").Process(target=_look_and_die, args=(table, found))
    child.start()
    child.join(60)
    assert child.exitcode == -9
    until_s = time.monotonic() + 20
    while Path(f"/proc/{found.read_text()}").exists():
        assert time.monotonic() < until_s
        time.sleep(0.02)


def _look_with_another(table: Path, first: int) -> None:
    check_footer(table, "x.parquet")
    assert _pid() != first
    footer_look._end()


def _look_and_die(table: Path, found: Path) -> None:
    check_footer(table, "x.parquet")
    found.write_text(str(_pid()))
    os.kill(os.getpid(), 9)
