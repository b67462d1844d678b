"""The tables that list a dataset, row by row: CSV, JSON, JSON Lines and Parquet.

Names of columns are lower-cased and stripped. Values stay what the format made of them: text from
CSV, and numbers, lists or nothing from the others.
"""

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet  # pyright: ignore[reportMissingTypeStubs]

from arachne.core.errors import DataError
from arachne.data.captions import read_text

# pyarrow ships no types.
pa: Any = pyarrow
pq: Any = pyarrow.parquet

TABLE_SUFFIXES = (".csv", ".json", ".jsonl", ".parquet")
"""Endings of files that may list a dataset."""


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


def read_table(path: Path, name: str) -> Table:
    """The table in a file; `name` is what messages call it.

    Raises:
        DataError: It cannot be read; the message names the line where there is one.
    """
    return _READERS[path.suffix.lower()](path, name)


def _read_csv(path: Path, name: str) -> Table:
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
        raise DataError(f"{name} line {reader.line_num} is not CSV: {error}") from error
    return Table(name=name, columns=columns, rows=tuple(rows))


def _read_json(path: Path, name: str) -> Table:
    """A list of objects, or one object whose only list is that list."""
    found = _parsed(read_text(path, name), name)
    is_table = isinstance(found, dict)
    values: list[Any] = list(cast(dict[str, Any], found).values()) if is_table else [found]
    lists: list[list[Any]] = [value for value in values if isinstance(value, list)]
    if len(lists) != 1:
        raise DataError(f"{name} is not a list of objects, one for each clip")
    items = enumerate(lists[0])
    return _of_objects(name, [(f"{name} item {number}", item) for number, item in items])


def _read_json_lines(path: Path, name: str) -> Table:
    lines = enumerate(read_text(path, name).splitlines(), start=1)
    numbered = [(f"{name} line {number}", line) for number, line in lines if line.strip()]
    return _of_objects(name, [(where, _parsed(line, where)) for where, line in numbered])


def _read_parquet(path: Path, name: str) -> Table:
    try:
        found = pq.read_table(str(path))
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{name} is not Parquet: {str(error).splitlines()[0]}") from error
    columns = _columns(found.column_names, name)
    rows: list[TableRow] = []
    for values in found.rename_columns(list(columns)).to_pylist():
        rows.append(TableRow(values=values, where=f"{name} row {len(rows)}"))
    return Table(name=name, columns=columns, rows=tuple(rows))


_READERS: dict[str, Callable[[Path, str], Table]] = {
    ".csv": _read_csv,
    ".json": _read_json,
    ".jsonl": _read_json_lines,
    ".parquet": _read_parquet,
}


def _columns(names: Iterable[str], table: str) -> tuple[str, ...]:
    columns = tuple(name.strip().lower() for name in names)
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
