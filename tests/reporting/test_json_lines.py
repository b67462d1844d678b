"""JSON Lines files survive a killed run."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arachne.core.errors import DataError
from arachne.core.strict_json import to_json
from arachne.reporting.json_lines import append_line, keep_lines, read_json_lines, steps_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    step: int
    text: str


rows = st.builds(Row, step=st.integers(0, 10**6), text=st.text(max_size=12))


@given(written=st.lists(rows, min_size=1, max_size=5), data=st.data())
def test_however_much_of_the_last_line_was_lost_all_lines_before_it_are_read(
    tmp_path_factory, written, data
):
    path = tmp_path_factory.mktemp("torn") / "rows.jsonl"
    for row in written:
        append_line(path, to_json(row))
    last = len(to_json(written[-1]).encode()) + 1
    lost = data.draw(st.integers(2, last))
    path.write_bytes(path.read_bytes()[:-lost])
    lines = read_json_lines(path, Row)
    assert lines.values == tuple(written[:-1])
    assert len(lines.notes) == (1 if lost < last else 0)


def test_a_line_that_only_lost_its_newline_is_whole(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    append_line(path, to_json(Row(step=1, text="a")))
    path.write_bytes(path.read_bytes()[:-1])
    assert read_json_lines(path, Row).values == (Row(step=1, text="a"),)


def test_a_resumed_run_does_not_lose_its_first_line_to_a_torn_one(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"step":1,"text":"a"}\n{"step":2,"te')
    append_line(path, to_json(Row(step=2, text="again")))
    lines = read_json_lines(path, Row)
    assert lines.values == (Row(step=1, text="a"), Row(step=2, text="again"))
    assert lines.notes == (
        "rows.jsonl: line 2 is torn and was skipped "
        "(14 bytes; the run was interrupted while writing it)",
    )


@pytest.mark.parametrize("torn", [b"\x00\x00\x00\x00\n", b'{"step":1,"text":"\xff\xfe\n'])
def test_bytes_that_a_power_cut_left_are_skipped(tmp_path: Path, torn: bytes):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(torn + b'{"step":1,"text":"a"}\n')
    lines = read_json_lines(path, Row)
    assert lines.values == (Row(step=1, text="a"),)
    assert len(lines.notes) == 1


def test_a_whole_line_of_another_shape_is_an_error_that_names_file_and_line(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"step":1,"text":"a"}\n{"step":1,"txt":"a"}\n')
    with pytest.raises(DataError, match=r"rows\.jsonl, line 2: unknown key 'txt'; .*'text'"):
        read_json_lines(path, Row)
    path.write_text('{"schritt":1}\n')
    with pytest.raises(DataError, match=r"rows\.jsonl, line 1 cannot be read"):
        read_json_lines(path, Row, steps={1})


def test_only_the_wanted_steps_are_read(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    for step in (3, 1, 2, 1):
        append_line(path, to_json(Row(step=step, text=str(step))))
    assert [row.step for row in read_json_lines(path, Row, steps={1, 3}).values] == [3, 1, 1]
    assert steps_in(path) == (1, 2, 3)


def test_a_missing_file_holds_nothing_and_a_folder_is_an_error(tmp_path: Path):
    assert read_json_lines(tmp_path / "none.jsonl", Row).values == ()
    assert steps_in(tmp_path / "none.jsonl") == ()
    with pytest.raises(DataError, match="cannot read"):
        read_json_lines(tmp_path, Row)


@pytest.mark.timeout(60)
def test_a_line_that_takes_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "metrics.jsonl"
    append_line(path, to_json(Row(step=1, text="")))
    with path.open("ab") as file:
        file.truncate(2**37)  # a hole, which takes no room
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 2 has more than 67\.1 MB, which no"):
        read_json_lines(path, Row)
    with pytest.raises(DataError, match="line 2 has more than"):
        keep_lines(path, lambda step, kind: True)
    assert steps_in(path) == ()


@pytest.mark.timeout(10)
def test_a_pipe_beside_a_file_whose_lines_are_dropped_keeps_nobody_waiting(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    append_line(path, '{"step": 1}')
    append_line(path, '{"step": 2}')
    os.mkfifo(tmp_path / "metrics.jsonl.partial")
    keep_lines(path, lambda step, kind: step < 2)
    assert path.read_text() == '{"step": 1}\n'


def test_text_stays_one_line_whatever_it_holds(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    row = Row(step=0, text="a\nb\u2028c")
    append_line(path, to_json(row))
    assert path.read_bytes().count(b"\n") == 1
    assert json.loads(path.read_text(encoding="utf-8"))["text"] == row.text
    assert read_json_lines(path, Row).values == (row,)
