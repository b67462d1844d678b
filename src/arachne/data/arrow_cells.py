"""Media whose bytes are the cells of an Arrow file: each is a slice of the file, read in place."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.compute  # pyright: ignore[reportMissingTypeStubs]
from numpy.typing import NDArray

from arachne.core.errors import DataError, first_line
from arachne.data.arrow_schema import media_leaves
from arachne.data.file_identity import remembered
from arachne.data.media_file import MediaFile
from arachne.data.remote_path import DatasetPath, RemotePath

# pyarrow ships no types.
pa: Any = pyarrow
pc: Any = pyarrow.compute

_FILE_MAGIC = b"ARROW1"


def open_arrow(path: DatasetPath) -> tuple[Any, int]:
    """A file's table, mapped into memory, and the address of its first byte.

    Both of Arrow's formats are read: the stream, which Hugging Face datasets write, and the file.

    Raises:
        DataError: It is no Arrow file, is damaged, or not on this machine.
    """
    if isinstance(path, RemotePath):
        raise DataError(
            f"{path.name!r} is an Arrow file, which is read in place and must lie on this machine; "
            "copy it here, or save the dataset as Parquet"
        )
    try:
        mapped = pa.memory_map(str(path))
        is_file = mapped.read(len(_FILE_MAGIC)) == _FILE_MAGIC
        mapped.seek(0)
        address = mapped.read_buffer(1).address
        mapped.seek(0)
        reader = pa.ipc.open_file(mapped) if is_file else pa.ipc.open_stream(mapped)
        table = reader.read_all()
        table.validate(full=True)  # damaged offsets would point outside the file
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{path.name!r} is not Arrow: {first_line(error)}") from error
    return table, address


def _read_cells(file: MediaFile) -> Mapping[str, NDArray[np.int64]]:
    table, address = open_arrow(file.path)
    media = media_leaves(table.schema, file.path.name)
    try:
        return {c: _slices(table.column(c), address, file.num_bytes) for c in media}
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise DataError(f"{file.path.name!r} is damaged: {first_line(error)}") from error


_cells_of: Callable[[DatasetPath | MediaFile], Mapping[str, NDArray[np.int64]]] = remembered(
    _read_cells, max_files=16
)
"""By column, (offset, bytes) of each row [N, 2]; a row that holds nothing has -1 bytes."""


def arrow_cell(path: DatasetPath, row: int, column: str) -> MediaFile:
    """A cell's bytes.

    Raises:
        DataError: There is no such row or column, or it holds nothing.
    """
    slices = _cells_of(path).get(column)
    if slices is None:
        raise DataError(f"{path.name!r} has no column {column!r} that holds media")
    if row >= len(slices):
        raise DataError(f"{path.name!r} has no row {row:,}")
    offset, num_bytes = map(int, slices[row])
    if num_bytes < 0:
        raise DataError(f"row {row:,} of {path.name!r} holds nothing in column {column!r}")
    return MediaFile(path=path, offset=offset, num_bytes=num_bytes)


def filled_rows(column: Any) -> NDArray[np.bool_]:
    """Which rows of a column that holds media do hold bytes."""
    parts = [_filled(chunk) for chunk in column.chunks]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.bool_)


def _filled(chunk: Any) -> NDArray[np.bool_]:
    filled = chunk.is_valid()
    if pa.types.is_struct(chunk.type):
        filled = pc.and_(filled, chunk.field("bytes").is_valid())
    found: NDArray[np.bool_] = filled.to_numpy(zero_copy_only=False)
    return found


def _slices(column: Any, address: int, file_bytes: int) -> NDArray[np.int64]:
    parts = [_chunk_slices(chunk, address, file_bytes) for chunk in column.chunks]
    return np.concatenate(parts) if parts else np.zeros((0, 2), dtype=np.int64)


def _chunk_slices(chunk: Any, address: int, file_bytes: int) -> NDArray[np.int64]:
    filled = _filled(chunk)
    values = chunk.field("bytes") if pa.types.is_struct(chunk.type) else chunk
    found = np.full((len(values), 2), -1, dtype=np.int64)
    _, offsets, data = values.buffers()
    if data is None or not filled.any():
        return found
    width = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    # As many as there are: a damaged buffer need not end with a whole one.
    marks = np.frombuffer(offsets, dtype=width, count=values.offset + len(values) + 1)
    marks = marks[values.offset :]
    first = data.address - address
    starts, ends = marks[:-1].astype(np.int64) + first, marks[1:].astype(np.int64) + first
    if first < 0 or (ends[filled] > file_bytes).any():
        raise DataError(
            "its media are compressed, so that they cannot be read in place; save it uncompressed"
        )
    found[filled, 0], found[filled, 1] = starts[filled], (ends - starts)[filled]
    return found
