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
from arachne.data.remote_path import DatasetPath

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


def read_parquet(path: DatasetPath, name: str, is_read: IsRead) -> Columns:
    """A Parquet table, with the values of some columns; `name` is what messages call it.

    Raises:
        DataError: It cannot be read.
    """
    try:
        with path.open("rb") as content, pq.ParquetFile(content) as file:
            schema = file.schema_arrow
            all_media = media_leaves(schema, name)
            media = {c: leaf for c, leaf in all_media.items() if is_read(c)}
            if media:
                parquet_cells.check_footer(file.metadata, name)
            read = [c for c in schema.names if is_read(c)]
            table = file.read(columns=[leaf for c in read for leaf in _leaves(c, schema, media)])
            filled = {c: parquet_cells.filled_rows(file, name, leaf) for c, leaf in media.items()}
            return schema.names, _rows(table, filled, file.metadata.num_rows)
    except _FAULTS as error:
        raise DataError(f"{name} cannot be read as Parquet: {first_line(error)}") from error


def read_arrow(path: DatasetPath, name: str, is_read: IsRead) -> Columns:
    """An Arrow table, with the values of some columns; `name` is what messages call it.

    Raises:
        DataError: It cannot be read.
    """
    try:
        whole, _ = arrow_cells.open_arrow(path)
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


def _rows(table: Any, filled: Mapping[str, Any], num_rows: int) -> list[dict[str, Any]]:
    """Values by row; `filled` says which rows of the columns with media hold bytes."""
    columns: dict[str, list[Any]] = {}
    for name in table.column_names:
        column = table.column(name)
        if name not in filled:
            columns[name] = column.to_pylist()
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
