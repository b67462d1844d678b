"""Tables whose names stay whole, in terminals of any width and in pipes."""

import re

import pytest

from arachne.cli.whole_names_table import print_line, print_table

COLUMNS = ("mean step", "× bound", "phases", "over cap")
ROWS = {
    "static_degree_longest_first": ("2 min 05 s", "1.0123", "1", "0"),
    "arachne": ("58.2 s", "1.0011", "12", "0"),
}
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [_STYLE.sub("", line).rstrip() for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    return monkeypatch


def test_a_pipe_gets_every_column_whole_whatever_the_width(monkeypatch, capsys):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "30")
    print_table("planner", COLUMNS, ROWS, bold="arachne")
    print_line("a sentence " * 20)

    assert printed(capsys) == [
        "                                  mean      ×        over",
        "planner                           step  bound phases  cap",
        "─" * 57,
        "static_degree_longest_first 2 min 05 s 1.0123      1    0",
        "arachne                         58.2 s 1.0011     12    0",
        ("a sentence " * 20).rstrip(),
    ]


@pytest.mark.parametrize(
    ("width", "heads", "absent"),
    [
        (57, ["step", "bound", "phases", "cap"], ""),
        (56, ["step", "bound", "phases"], "over cap"),
        (50, ["step", "bound"], "phases, over cap"),
        (40, ["step"], "× bound, phases, over cap"),
    ],
)
def test_a_narrow_terminal_gets_fewer_columns_and_whole_names(
    terminal, capsys, width: int, heads: list[str], absent: str
):
    terminal.setenv("COLUMNS", str(width))
    print_table("planner", COLUMNS, ROWS, bold="arachne")

    lines = printed(capsys)
    assert max(map(len, lines)) <= width
    assert lines[1].split() == ["planner", *heads]
    assert [line.split()[0] for line in lines[3:5]] == list(ROWS)
    told = " ".join(lines[5:])
    assert told == (absent and f"not shown in {width} columns: {absent}; --json has all")


def test_columns_that_are_alike_in_all_rows_are_left_out_first(terminal, capsys):
    rows = {"a" * 20: ("1.0", "7", "3"), "b": ("1.0", "8", "4")}
    terminal.setenv("COLUMNS", "28")
    print_table("planner", ("same", "one", "other"), rows, bold="")
    terminal.setenv("COLUMNS", "32")
    print_table("planner", ("same", "one", "other"), rows, bold="")

    heads = [line.split()[1:] for line in printed(capsys) if line.startswith("planner")]
    assert heads == [["one"], ["one", "other"]]
