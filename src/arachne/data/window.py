"""A seekable binary file that is made of a function which reads at a position."""

import io
from collections.abc import Callable
from typing import Any

ReadAt = Callable[[int, memoryview], int]
"""Fills a buffer with the bytes from a position on; how many there were, 0 at the end."""


class Window(io.RawIOBase):
    """`num_bytes` bytes that `read_at` gives; positions count from 0, and reads stop at the end."""

    def __init__(self, read_at: ReadAt, num_bytes: int, close: Callable[[], None]) -> None:
        super().__init__()
        self._read_at = read_at
        self._num_bytes = num_bytes
        self._close = close
        self._position = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Let the next read begin elsewhere."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._num_bytes}[whence]
        if start + offset < 0:
            raise ValueError(f"cannot seek to {start + offset}, before the start")
        self._position = start + offset
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer as far as there are bytes."""
        left = max(0, self._num_bytes - self._position)
        wanted = memoryview(buffer)[:left]
        count = self._read_at(self._position, wanted) if len(wanted) else 0
        self._position += count
        return count

    def close(self) -> None:
        """Let go of what is read."""
        if not self.closed:
            self._close()
        super().close()
