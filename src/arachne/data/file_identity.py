"""Remember what was found in a file for as long as it stays the same file.

The key holds the file's stamp, so that a file which was replaced by another with the same name,
size and modification time is read again.
"""

import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

from arachne.data.file_stamp import Stamp, stamp_of
from arachne.data.media_file import MediaFile, as_media_file
from arachne.data.remote_path import DatasetPath

T = TypeVar("T")


def remembered(
    read: Callable[[MediaFile], T], max_files: int
) -> Callable[[DatasetPath | MediaFile], T]:
    """`read`, with the answers for the last `max_files` unchanged files kept.

    What it gives also takes a path, which means the whole file.
    """

    @lru_cache(maxsize=max_files)
    def read_once(file: MediaFile, _stamp: Stamp) -> T:
        return read(file)

    def read_or_remember(file: DatasetPath | MediaFile) -> T:
        media = as_media_file(file)
        return read_once(media, stamp_of(media.path))

    return read_or_remember


def _hash(file: MediaFile) -> str:
    with file.open() as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


content_of: Callable[[DatasetPath | MediaFile], str] = remembered(_hash, max_files=1024)
"""SHA-256 of a file's bytes, or of a slice's, in hex."""
