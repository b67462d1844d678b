"""The tables that list a dataset, row by row: CSV, JSON, JSON Lines, Parquet and Arrow.

Names of columns are lower-cased and stripped. Values stay what the format made of them: text from
CSV, and numbers, lists or nothing from the others; media that lie in a table stay there.
"""

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from arachne.core.errors import DataError
from arachne.data.captions import lines_of, read_text
from arachne.data.columnar_table import (
    Columns,
    IsRead,
    arrow_columns,
    parquet_columns,
    read_arrow,
    read_parquet,
)
from arachne.data.remote_path import DatasetPath

TABLE_SUFFIXES = (".csv", ".json", ".jsonl", ".parquet", ".arrow")
"""Endings of files that may list a dataset."""

_MAX_HEAD_BYTES = 2**20
"""Of a text file, within which its first row must end. *Assumption*: far more than any has."""

_MAX_VALUE_CHARS = 2**24
"""Of one value in CSV. *Assumption*: Panda-70M's lists of spans and captions are far shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One row of a table.

    Attributes:
        values: By name of the column.
        where: How messages call the row: `metadata.csv line 3`.
    """

    values: Mapping[str, Any]
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table's rows, and all its columns in order.

    Attributes:
        name: How messages call it.
    """

    name: str
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]


def column_names(path: DatasetPath, name: str) -> tuple[str, ...]:
    """The names of a table's columns, without reading its rows; `name` is what messages call it.

    Of JSON Lines they are those of the first row. Other JSON is refused.

    Raises:
        DataError: They cannot be read.
    """
    suffix = path.suffix.lower()
    if suffix in _COLUMN_READERS:
        return _columns(_COLUMN_READERS[suffix](path, name), name)
    try:
        with path.open("rb") as file:
            head = file.read(_MAX_HEAD_BYTES).decode("utf-8-sig", errors="replace")
        if suffix == ".csv":
            return _columns(next(csv.reader(io.StringIO(head, newline="")), list[str]()), name)
    except OSError as error:
        raise DataError(f"cannot read {name!r}: {error.strerror or error}") from error
    except csv.Error as error:
        raise DataError(f"{name} line 1 is not CSV: {error}") from error
    first = next(filter(str.strip, lines_of(head)), "{}")
    return _of_objects(name, [(f"{name} line 1", _parsed(first, f"{name} line 1"))]).columns


def read_table(path: DatasetPath, name: str, is_read: IsRead) -> Table:
    """The table in a file; `name` is what messages call it.

    Of Parquet and Arrow files only the values of the columns that are read are loaded; their rows
    have no others. `is_read` gets names in small letters, without outer spaces.

    Raises:
        DataError: It cannot be read; the message names the line where there is one.
    """
    suffix = path.suffix.lower()
    if suffix in _COLUMNAR_READERS:
        return _read_columnar(_COLUMNAR_READERS[suffix], path, name, is_read)
    return _READERS[suffix](path, name)


def _read_csv(path: DatasetPath, name: str) -> Table:
    csv.field_size_limit(_MAX_VALUE_CHARS)  # of all readers in the process; usually 131,072
    reader = csv.reader(io.StringIO(read_text(path, name), newline=""), strict=True)
    rows: list[TableRow] = []
    try:
        columns = _columns(next(reader, list[str]()), name)
        for values in reader:
            where = f"{name} line {reader.line_num}"
            if len(values) > len(columns):
                raise DataError(
                    f"{where} has {len(values)} values for {len(columns)} columns; "
                    "put captions that hold commas in double quotes"
                )
            if any(value.strip() for value in values):
                padded = values + [""] * (len(columns) - len(values))
                rows.append(TableRow(values=dict(zip(columns, padded, strict=True)), where=where))
    except csv.Error as error:
        raise DataError(
            f"{name} line {reader.line_num} is not CSV: {error}; look there for a double "
            "quote that is not closed"
        ) from error
    return Table(name=name, columns=columns, rows=tuple(rows))


def _read_json(path: DatasetPath, name: str) -> Table:
    """A list of objects, or one object whose only list is that list."""
    found = _parsed(read_text(path, name), name)
    is_table = isinstance(found, dict)
    values: list[Any] = list(cast(dict[str, Any], found).values()) if is_table else [found]
    lists: list[list[Any]] = [value for value in values if isinstance(value, list)]
    if len(lists) != 1:
        raise DataError(f"{name} is not a list of objects, one for each clip")
    items = enumerate(lists[0])
    return _of_objects(name, [(f"{name} item {number}", item) for number, item in items])


def _read_json_lines(path: DatasetPath, name: str) -> Table:
    lines = enumerate(lines_of(read_text(path, name)), start=1)
    numbered = [(f"{name} line {number}", line) for number, line in lines if line.strip()]
    return _of_objects(name, [(where, _parsed(line, where)) for where, line in numbered])


def _read_columnar(
    read: Callable[[DatasetPath, str, IsRead], Columns],
    path: DatasetPath,
    name: str,
    is_read: IsRead,
) -> Table:
    names, found = read(path, name, lambda column: is_read(_small(column)))
    columns = _columns(names, name)
    rows = [
        TableRow(
            values={_small(column): value for column, value in values.items()},
            where=f"{name} row {row}",
        )
        for row, values in enumerate(found)
    ]
    return Table(name=name, columns=columns, rows=tuple(rows))


_READERS: dict[str, Callable[[DatasetPath, str], Table]] = {
    ".csv": _read_csv,
    ".json": _read_json,
    ".jsonl": _read_json_lines,
}
_COLUMN_READERS: dict[str, Callable[[DatasetPath, str], Sequence[str]]] = {
    ".parquet": parquet_columns,
    ".arrow": arrow_columns,
}
_COLUMNAR_READERS: dict[str, Callable[[DatasetPath, str, IsRead], Columns]] = {
    ".parquet": read_parquet,
    ".arrow": read_arrow,
}


def _small(name: str) -> str:
    return name.strip().lower()


def _columns(names: Iterable[str], table: str) -> tuple[str, ...]:
    columns = tuple(map(_small, names))
    for column in columns:
        if column and columns.count(column) > 1:
            raise DataError(f"{table} has {columns.count(column)} columns {column!r}; keep one")
    return columns


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not JSON: {error}") from error


def _of_objects(name: str, items: Iterable[tuple[str, Any]]) -> Table:
    columns: dict[str, None] = {}
    rows: list[TableRow] = []
    for where, item in items:
        if not isinstance(item, dict):
            raise DataError(f"{where} is not an object with a file and a caption")
        fields = cast(dict[str, Any], item)
        names = _columns(fields, where)
        columns.update(dict.fromkeys(names))
        rows.append(TableRow(values=dict(zip(names, fields.values(), strict=True)), where=where))
    return Table(name=name, columns=tuple(columns), rows=tuple(rows))
