"""A file, a slice of one, or a cell of a table: what every decoder opens."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arachne.data.parquet_cells import ParquetCell, cell_bytes

_BUFFER_BYTES = 2**18
"""Decoders read tens of kilobytes at a time; fewer, larger reads reach the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaFile:
    """The bytes [offset, offset + num_bytes) of a file: all of it, or a member of a tar.

    With a `cell`, those of that cell of the Parquet file at `path`.
    """

    path: Path
    offset: int
    num_bytes: int
    cell: ParquetCell | None = None

    def open(self) -> io.BufferedReader:
        """A seekable binary file that holds these bytes and no others.

        Raises:
            DataError: The cell's table has changed, or cannot be read.
        """
        if self.cell is None:
            return io.BufferedReader(_Slice(self), _BUFFER_BYTES)
        content: Any = io.BytesIO(cell_bytes(self.path, self.cell))
        return io.BufferedReader(content, _BUFFER_BYTES)


def whole_file(path: Path) -> MediaFile:
    """All bytes of a file, as many as it has now."""
    return MediaFile(path=path, offset=0, num_bytes=path.stat().st_size)


def as_media_file(file: Path | MediaFile) -> MediaFile:
    """A path means the whole file."""
    return whole_file(file) if isinstance(file, Path) else file


class _Slice(io.RawIOBase):
    """A window on a file; positions count from its start, and reads stop at its end."""

    def __init__(self, file: MediaFile) -> None:
        super().__init__()
        self._offset = file.offset
        self._num_bytes = file.num_bytes
        self._position = 0
        self._file = file.path.open("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._num_bytes}[whence]
        if start + offset < 0:
            raise ValueError(f"cannot seek to {start + offset}, before the start")
        self._position = start + offset
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        left = max(0, self._num_bytes - self._position)
        window = memoryview(buffer)[:left]
        self._file.seek(self._offset + self._position)
        count = self._file.readinto(window) or 0
        self._position += count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()
