"""Media whose bytes are the cells of a Parquet file, decompressed one row group at a time."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.compute  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet  # pyright: ignore[reportMissingTypeStubs]
from numpy.typing import NDArray

from arachne.core.errors import DataError, first_line
from arachne.data.arrow_schema import media_leaves
from arachne.data.file_stamp import Stamp, stamp_of
from arachne.data.footer_look import check_footer
from arachne.data.remote_path import DatasetPath

# pyarrow ships no types.
pa: Any = pyarrow
pc: Any = pyarrow.compute
pq: Any = pyarrow.parquet

MAX_GROUP_BYTES = 2**30
"""Of the media of one row group, which is held in memory whole beside what decoding may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetCell:
    """One value of a binary column.

    Attributes:
        leaf: The column, as Parquet calls it: `video.bytes`.
        row_group: Which row group it lies in.
        index: Its row in there.
    """

    leaf: str
    row_group: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Footer:
    """Where rows lie.

    Attributes:
        leaves: Binary columns, by the names of their columns in the table.
        ends: Rows up to the end of each row group.
    """

    leaves: dict[str, str]
    ends: NDArray[np.int64]


def parquet_cell(path: DatasetPath, row: int, column: str) -> tuple[ParquetCell, int]:
    """A cell, and how many bytes it holds.

    Raises:
        DataError: There is no such row or column, or it holds nothing.
    """
    stamp = stamp_of(path)
    footer = _footer(path, stamp)
    leaf = footer.leaves.get(column)
    if leaf is None:
        raise DataError(f"{path.name!r} has no column {column!r} that holds media")
    if not row < (footer.ends[-1] if len(footer.ends) else 0):
        raise DataError(f"{path.name!r} has no row {row:,}")
    group = int(np.searchsorted(footer.ends, row, side="right"))
    start = int(footer.ends[group - 1]) if group else 0
    cell = ParquetCell(leaf=leaf, row_group=group, index=row - start)
    content = _values(path, stamp, leaf, group)[cell.index]
    if not content.is_valid:
        raise DataError(f"row {row:,} of {path.name!r} holds nothing in column {column!r}")
    return cell, len(content.as_buffer())


def cell_bytes(path: DatasetPath, cell: ParquetCell) -> Any:
    """The content of a cell, as a buffer.

    Raises:
        DataError: The file has changed, or cannot be read.
    """
    values = _values(path, stamp_of(path), cell.leaf, cell.row_group)
    if cell.index >= len(values) or not values[cell.index].is_valid:
        raise DataError(f"{path.name!r} has changed since it was looked at")
    return values[cell.index].as_buffer()


def filled_rows(file: Any, name: str, leaf: str) -> NDArray[np.bool_]:
    """Which rows of an open `ParquetFile` hold something in a column; reads it where it must."""
    metadata = file.metadata
    leaves = [metadata.schema.column(i).path for i in range(len(metadata.schema))]
    index = leaves.index(leaf)
    found: list[NDArray[np.bool_]] = []
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group)
        statistics = rows.column(index).statistics
        num_empty = statistics.null_count if statistics and statistics.has_null_count else None
        if num_empty in (0, rows.num_rows):
            found.append(np.full(int(rows.num_rows), bool(num_empty == 0)))
        else:
            values = _read_group(file, name, leaf, group)
            found.append(values.is_valid().to_numpy(zero_copy_only=False))
    filled = np.concatenate(found) if found else np.zeros(0, dtype=np.bool_)
    if len(filled) != metadata.num_rows:
        raise DataError(f"{name} has {metadata.num_rows:,} rows, and {len(filled):,} in its parts")
    return filled


@lru_cache(maxsize=16)
def _footer(path: DatasetPath, _stamp: Stamp) -> _Footer:
    with _opened(path, is_checked=False) as file:
        groups = range(file.metadata.num_row_groups)
        counts: Sequence[int] = [file.metadata.row_group(group).num_rows for group in groups]
        return _Footer(
            leaves=media_leaves(file.schema_arrow, path.name),
            ends=np.cumsum(counts, dtype=np.int64),
        )


@lru_cache(maxsize=1)
def _values(path: DatasetPath, _stamp: Stamp, leaf: str, group: int) -> Any:
    with _opened(path) as file:
        return _read_group(file, path.name, leaf, group)


@contextmanager
def _opened(path: DatasetPath, *, is_checked: bool = True) -> Generator[Any, None, None]:
    """A `ParquetFile`, whose footer is looked at first; its errors in the block become DataErrors.

    A footer that `is_checked` was looked at before.
    """
    try:
        if not is_checked:
            check_footer(path, path.name)
        with path.open("rb") as content, pq.ParquetFile(content) as file:
            yield file
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{path.name!r} cannot be read as Parquet: {first_line(error)}") from error


def _read_group(file: Any, name: str, leaf: str, group: int) -> Any:
    """One binary column of a row group, as one array."""
    rows = file.metadata.row_group(group)
    for index in range(rows.num_columns):
        found = rows.column(index)
        if found.path_in_schema == leaf and found.total_uncompressed_size > MAX_GROUP_BYTES:
            raise DataError(
                f"{name}: row group {group} holds {found.total_uncompressed_size:,} bytes of "
                f"media, which must fit in memory; the limit is {MAX_GROUP_BYTES:,}: write smaller "
                "row groups, such as with to_parquet(..., batch_size=100)"
            )
    values = file.read_row_group(group, columns=[leaf]).column(0).combine_chunks()
    if isinstance(values, pa.ChunkedArray):
        values = values.chunk(0) if values.num_chunks else pa.array([], type=values.type)
    if pa.types.is_struct(values.type):
        filled = values.is_valid()
        inner = values.field("bytes")
        return pc.if_else(filled, inner, pa.scalar(None, type=inner.type))
    return values
