"""A remote file as a copy on this machine, for as long as it is being read.

Of a clip all bytes are needed: their hash names what is cached of it. They are fetched once, in
order, and then hashed, scanned and decoded from the copy, so that all three see the same bytes, and
a connection that fails is never taken for a damaged clip.
"""

import os
import tempfile
from functools import lru_cache

from arachne.data.remote_path import RemotePath

_BLOCK_BYTES = 2**24

_MOST_TIMES = 100
"""*Assumption*: what holds pictures cannot be packed further; deflated zeros are at 1,000."""


class Copy:
    """A file without a name in the folder for temporary files; gone with its last holder."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115

    def append(self, content: bytes) -> None:
        """Add bytes at the end."""
        self._file.write(content)

    def read_at(self, position: int, buffer: memoryview) -> int:
        """Fill a buffer with the bytes from a position on; how many there were."""
        return os.preadv(self._file.fileno(), [buffer], position)

    def __del__(self) -> None:
        self._file.close()


@lru_cache(maxsize=1)
def fetched(path: RemotePath, offset: int, num_bytes: int) -> Copy:
    """A copy of the bytes [offset, offset + num_bytes) of a file; the last one is kept.

    Raises:
        OSError: They cannot be read, unpack to far more than they are, or the disk is full.
    """
    # Of what is small nobody asks: far away that takes a request.
    if num_bytes > _BLOCK_BYTES and (times := path.times_packed()) > _MOST_TIMES:
        raise OSError(
            f"it unpacks to {times:,.0f} times its size, as no video does; unpack the archive if "
            "it is meant"
        )
    copy = Copy()
    with path.open() as file:
        file.seek(offset)
        left = num_bytes
        while left:
            content = file.read(min(left, _BLOCK_BYTES))
            if not content:
                raise OSError(f"it ended {left:,} bytes early; it changed while it was read")
            copy.append(content)
            left -= len(content)
    return copy
