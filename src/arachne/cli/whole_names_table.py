"""A table whose first column holds names that stay whole, in a terminal and in a pipe."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Rows = Mapping[str, Sequence[str]]
"""Texts of each row, by its name."""

_ANY_WIDTH = 10_000


def print_table(what: str, columns: Sequence[str], rows: Rows, *, bold: str) -> None:
    """Print a row for each name, under heads of which two words take two lines.

    A terminal that is too narrow gets fewer columns, and a line that names those left out: first
    the ones that are alike in all rows, then those furthest to the right. Elsewhere nothing is left
    out, as no line has to be cut.

    Args:
        what: Head of the names.
        columns: Heads of the other columns.
        rows: One text for each of `columns`.
        bold: Name of the row that stands out.
    """
    from rich.console import Console

    console = Console(highlight=False)
    shown = list(range(len(columns)))
    table = _table(what, columns, rows, shown, bold)
    width = _width(console, table)
    while console.is_terminal and width > console.width and len(shown) > 1:
        shown.remove(_least_telling(shown, rows))
        table = _table(what, columns, rows, shown, bold)
        width = _width(console, table)
    wide = console if console.is_terminal else Console(highlight=False, width=width)
    wide.print(table)
    if len(shown) < len(columns):
        absent = ", ".join(name for index, name in enumerate(columns) if index not in shown)
        print_line(f"not shown in {console.width} columns: {absent}; --json has all")


def print_line(line: str) -> None:
    """Print a sentence; in a pipe it stays one line."""
    from rich.console import Console

    console = Console(highlight=False)
    console.print(line, markup=False, soft_wrap=not console.is_terminal)


def _table(
    what: str, columns: Sequence[str], rows: Rows, shown: Sequence[int], bold: str
) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column(what, no_wrap=True)
    for index in shown:
        table.add_column(columns[index].replace(" ", "\n"), justify="right", no_wrap=True)
    for name, texts in rows.items():
        style = "bold" if name == bold else None
        table.add_row(name, *(texts[index] for index in shown), style=style)
    return table


def _width(console: "Console", table: "Table") -> int:
    return console.measure(table, options=console.options.update(max_width=_ANY_WIDTH)).maximum


def _least_telling(shown: Sequence[int], rows: Rows) -> int:
    def differs(index: int) -> bool:
        return len({texts[index] for texts in rows.values()}) > 1

    return min(shown, key=lambda index: (differs(index), -index))
