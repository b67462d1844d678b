"""The rows of Parquet and Arrow tables, without the media that some of their columns hold.

The value of such a column is what a Hugging Face dataset has there: `bytes`, here only their place
in the table, and `path`, the file that they came from or that is meant.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.compute  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet  # pyright: ignore[reportMissingTypeStubs]

from arachne.core.errors import DataError, first_line
from arachne.data import arrow_cells, parquet_cells
from arachne.data.arrow_schema import media_leaves
from arachne.data.footer_look import check_footer
from arachne.data.remote_path import DatasetPath
from arachne.data.table_room import check_room, check_row_room

# pyarrow ships no types.
pa: Any = pyarrow
pc: Any = pyarrow.compute
pq: Any = pyarrow.parquet

_FAULTS = (OSError, pa.ArrowException, ValueError, OverflowError)
"""Of damaged files, and of values that Python has no type for."""

Columns = tuple[Sequence[str], list[dict[str, Any]]]
"""Names of columns as the table has them, and its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InTable:
    """Stands for bytes that lie in a table.

    Attributes:
        member: Their place in it, by row and column: `17/video`.
    """

    member: str


IsRead = Callable[[str], bool]
"""Whether the values of a column, by its name in small letters, are of any use."""


def parquet_columns(path: DatasetPath, name: str) -> Sequence[str]:
    """The names of a Parquet table's columns; `name` is what messages call it.

    Raises:
        DataError: It cannot be read.
    """
    try:
        with path.open("rb") as content:
            check_footer(path, name)
            return pq.read_schema(content).names
    except _FAULTS as error:
        raise DataError(f"{name} cannot be read as Parquet: {first_line(error)}") from error


def arrow_columns(path: DatasetPath, _name: str) -> Sequence[str]:
    """The names of an Arrow table's columns.

    Raises:
        DataError: It cannot be read.
    """
    return arrow_cells.open_arrow(path)[0].column_names


def read_parquet(path: DatasetPath, name: str, is_read: IsRead) -> Columns:
    """A Parquet table, with the values of some columns; `name` is what messages call it.

    Raises:
        DataError: It cannot be read.
    """
    try:
        with path.open("rb") as content:
            check_footer(path, name)
            file = pq.ParquetFile(content)
            schema, metadata = file.schema_arrow, file.metadata
            all_media = media_leaves(schema, name)
            media = {c: leaf for c, leaf in all_media.items() if is_read(c)}
            read = [c for c in schema.names if is_read(c)]
            columns = [leaf for c in read for leaf in _leaves(c, schema, media)]
            check_room(metadata, columns, name)
            texts = [c for c in columns if c in schema.names and _is_text(schema.field(c).type)]
            file = pq.ParquetFile(content, metadata=metadata, read_dictionary=texts)
            table = file.read(columns=columns)
            filled = {c: parquet_cells.filled_rows(file, name, leaf) for c, leaf in media.items()}
            return schema.names, _rows(table, filled, metadata.num_rows)
    except _FAULTS as error:
        raise DataError(f"{name} cannot be read as Parquet: {first_line(error)}") from error


def read_arrow(path: DatasetPath, name: str, is_read: IsRead) -> Columns:
    """An Arrow table, with the values of some columns; `name` is what messages call it.

    Raises:
        DataError: It cannot be read.
    """
    try:
        whole, _ = arrow_cells.open_arrow(path)
        check_row_room(whole.num_rows, name)
        all_media = media_leaves(whole.schema, name)
        table = whole.select([c for c in whole.column_names if is_read(c)])
        media = [c for c in all_media if is_read(c)]
        filled = {c: arrow_cells.filled_rows(table.column(c)) for c in media}
        return whole.column_names, _rows(table, filled, whole.num_rows)
    except _FAULTS as error:
        raise DataError(f"{name} cannot be read as Arrow: {first_line(error)}") from error


def _leaves(column: str, schema: Any, media: Mapping[str, str]) -> list[str]:
    """What has to be read of a column: all but its media."""
    if column not in media:
        return [column]
    return [f"{column}.path"] if _has_path(schema.field(column).type) else []


def _has_path(kind: Any) -> bool:
    return bool(pa.types.is_struct(kind)) and kind.get_field_index("path") >= 0


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _values(column: Any) -> list[Any]:
    """Python values; equal texts of a dictionary are one object, however often they occur."""
    if not pa.types.is_dictionary(column.type):
        return column.to_pylist()
    values: list[Any] = []
    for chunk in column.chunks:
        words = chunk.dictionary.to_pylist()
        for index in chunk.indices.to_pylist():
            if index is not None and not 0 <= index < len(words):
                raise ValueError(f"a text is the {index:,}th of {len(words):,}")
            values.append(None if index is None else words[index])
    return values


def _rows(table: Any, filled: Mapping[str, Any], num_rows: int) -> list[dict[str, Any]]:
    """Values by row; `filled` says which rows of the columns with media hold bytes."""
    columns: dict[str, list[Any]] = {}
    for name in table.column_names:
        column = table.column(name)
        if name not in filled:
            columns[name] = _values(column)
    for name, is_filled in filled.items():
        paths: list[str | None] = [None] * num_rows
        if name in table.column_names and _has_path(table.column(name).type):
            paths = pc.struct_field(table.column(name), "path").to_pylist()
        columns[name] = [
            {"bytes": InTable(member=f"{row}/{name}") if is_filled[row] else None, "path": path}
            for row, path in enumerate(paths)
        ]
    names = list(columns)
    if not names:
        return [{} for _ in range(num_rows)]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True)]
