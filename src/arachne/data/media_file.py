"""A file, a slice of one, or a cell of a table: what every decoder opens."""

import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arachne.data.fetched import fetched
from arachne.data.file_stamp import num_bytes_of
from arachne.data.parquet_cells import ParquetCell, cell_bytes
from arachne.data.remote_path import DatasetPath, RemotePath
from arachne.data.window import Window

_BUFFER_BYTES = 2**18
"""Decoders read tens of kilobytes at a time; fewer, larger reads reach the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaFile:
    """The bytes [offset, offset + num_bytes) of a file: all of it, or a member of a tar.

    With a `cell`, those of that cell of the Parquet file at `path`.
    """

    path: DatasetPath
    offset: int
    num_bytes: int
    cell: ParquetCell | None = None

    def open(self) -> io.BufferedReader:
        """A seekable binary file that holds these bytes and no others.

        Raises:
            DataError: The cell's table has changed, or cannot be read.
            OSError: The file cannot be read.
        """
        content: Any
        if self.cell is not None:
            content = io.BytesIO(cell_bytes(self.path, self.cell))
        elif isinstance(self.path, RemotePath):
            copy = fetched(self.path, self.offset, self.num_bytes)
            content = Window(copy.read_at, self.num_bytes, close=lambda: None)
        else:
            content = _local_window(self.path, self.offset, self.num_bytes)
        return io.BufferedReader(content, _BUFFER_BYTES)


def whole_file(path: DatasetPath) -> MediaFile:
    """All bytes of a file, as many as it has now."""
    return MediaFile(path=path, offset=0, num_bytes=num_bytes_of(path))


def as_media_file(file: DatasetPath | MediaFile) -> MediaFile:
    """A path means the whole file."""
    return file if isinstance(file, MediaFile) else whole_file(file)


def _local_window(path: Path, offset: int, num_bytes: int) -> Window:
    file = path.open("rb", buffering=0)

    def read_at(position: int, buffer: memoryview) -> int:
        return os.preadv(file.fileno(), [buffer], offset + position)

    return Window(read_at, num_bytes, file.close)
