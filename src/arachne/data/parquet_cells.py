"""Media whose bytes are the cells of a Parquet file, decompressed one row group at a time."""

import faulthandler
import os
import resource
import select
import signal
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np
import pyarrow  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.compute  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet  # pyright: ignore[reportMissingTypeStubs]
from numpy.typing import NDArray

from arachne.core.errors import DataError, first_line
from arachne.data.arrow_schema import media_leaves
from arachne.data.file_stamp import Stamp, stamp_of
from arachne.data.remote_path import DatasetPath

# pyarrow ships no types.
pa: Any = pyarrow
pc: Any = pyarrow.compute
pq: Any = pyarrow.parquet

_LOOK_S = 15.0
"""*Assumption*: no footer takes longer to look at, also on a busy machine."""

_MOST_LOOKS = 4
"""*Assumption*: so many forks in a row do not all come while a thread holds what they need."""

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


def check_footer(metadata: Any, name: str) -> None:
    """Let a forked process look at a footer first: of some damaged ones pyarrow ends the process.

    A process that forks while others of its threads work may leave the new one waiting for ever for
    a lock that none of them will give up there; then it is ended, and another one looks.

    Raises:
        DataError: It was ended, or found that the footer cannot be read.
    """
    for _ in range(_MOST_LOOKS):
        status = _status_of_look(metadata)
        if status == 0:
            return
        if status is not None:
            raise DataError(f"{name} cannot be read as Parquet: its footer is damaged")
    raise DataError(
        f"{name} cannot be read as Parquet: {_MOST_LOOKS} processes in a row did not look at its "
        f"footer within {_LOOK_S:g} s each; is the machine overloaded? Try again"
    )


def _status_of_look(metadata: Any) -> int | None:
    """How a process ended that looked at a footer; None if it had to be ended."""
    child = os.fork()
    if child == 0:
        _look_at(metadata)
    ending = os.pidfd_open(child)
    try:
        has_ended = bool(select.select([ending], [], [], _LOOK_S)[0])
        if not has_ended:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    finally:
        os.close(ending)
    return status if has_ended else None


def _look_at(metadata: Any) -> NoReturn:
    """Ask a footer all that is asked of it here; ends the process, with 0 if that is possible."""
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # where C++ says why it ends
        faulthandler.disable()
        for group in range(metadata.num_row_groups):
            rows = metadata.row_group(group)
            for index in range(rows.num_columns):
                column = rows.column(index)
                statistics = column.statistics
                _ = column.path_in_schema, column.total_uncompressed_size
                _ = statistics and (statistics.has_null_count, statistics.null_count)
        code = 0
    finally:
        os._exit(code)


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
    with _opened(path) as file:
        check_footer(file.metadata, path.name)
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
def _opened(path: DatasetPath) -> Generator[Any, None, None]:
    """A `ParquetFile`; its errors in the block become DataErrors."""
    try:
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
