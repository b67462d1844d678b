"""Rows of an earlier ledger that still hold: only files that changed since are read again.

A row holds while its file's lasting stamp is the one it had when it was hashed. Where the stamp is
another, the file's content decides.
"""

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from zlib import crc32

from arachne.core.clip import Clip, TimeSpan
from arachne.core.errors import DataError
from arachne.core.ledger import LedgerRow
from arachne.data.file_identity import content_of
from arachne.data.file_stamp import lasting_stamp, may_be_copy
from arachne.data.remote_path import DatasetPath
from arachne.data.source_media import source_file, source_media

_NUM_THREADS = 16
"""A question to a server takes far longer than asking it."""

_MAX_COPIES = 1000
_MAX_COPIED_BYTES = 4 * 2**30
"""Of files that are copies, or that were replaced by some of their size and time. *Assumption*: to
read so much takes seconds, and nobody replaces more in this way."""

Rows = tuple[LedgerRow, ...]
_Part = tuple[str, TimeSpan | None]
"""A file, and the part of it that the dataset lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRows:
    """What an earlier ledger of a dataset, made by the same rules, says of files.

    Attributes:
        of_part: Rows of each part of a file that the dataset listed.
        stamps: Of the files as they are now; without those that are away.
    """

    of_part: Mapping[_Part, Rows]
    stamps: Mapping[str, str]

    def holding(self, clip: Clip) -> Rows | None:
        """The rows of a listed clip, however it is described now, if its file is as it was, or is
        away; None if it has to be read.
        """
        known = self.of_part.get((clip.path, clip.span))
        if known is None or self.stamps.get(clip.path, known[0].stamp) != known[0].stamp:
            return None
        return _of(clip, known)

    def confirmed(self, clip: Clip, found: Rows) -> Rows:
        """What was found in a file that was read again; where its content is the one that is known,
        the rows that are known, which may say more.
        """
        known = self.of_part.get((clip.path, clip.span))
        if known is None or found[0].content != known[0].content:
            return found
        return tuple(replace(row, stamp=found[0].stamp) for row in _of(clip, known))


def known_rows(root: DatasetPath, rows: Sequence[LedgerRow]) -> KnownRows:
    """The rows of an earlier ledger, beside the stamps that their files have now."""
    of_part: dict[_Part, dict[TimeSpan | None, LedgerRow]] = {}
    for row in rows:
        if row.content:
            pieces = of_part.setdefault((row.clip.path, row.clip.span), {})
            pieces.setdefault(row.clip.piece, row)  # the same part may be listed twice
    return KnownRows(
        of_part={part: tuple(pieces.values()) for part, pieces in of_part.items()},
        stamps=current_stamps(root, {path for path, _ in of_part}),
    )


def current_stamps(root: DatasetPath, paths: Collection[str]) -> dict[str, str]:
    """The lasting stamps of a dataset's files; without those that are away."""

    def stamp(path: str) -> str:
        try:
            return lasting_stamp(source_file(root, path))
        except (DataError, OSError):
            return ""

    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        found = zip(paths, threads.map(stamp, paths), strict=True)
    return {path: stamp for path, stamp in found if stamp}


def replaced_paths(root: DatasetPath, rows: Sequence[LedgerRow]) -> frozenset[str]:
    """Files that hold other content than when a ledger was made; those that are away do not count.

    Read are files of another size or modification time, and of those whose change time alone is
    another so many as `_MAX_COPIES` and `_MAX_COPIED_BYTES` say: a few that were replaced are all
    read, and a dataset that was copied whole is not. A file whose stamp is not known is taken for
    the same.
    """
    before = {row.clip.path: row for row in rows if row.stamp and row.content}
    now = current_stamps(root, before)
    touched = [path for path in now if now[path] != before[path].stamp]
    copies = [path for path in touched if may_be_copy(before[path].stamp, now[path])]
    # Spread over the dataset, but whole shards: what lies in one file has one stamp.
    copies.sort(key=lambda path: (crc32(now[path].encode()), path))
    suspects = [path for path in touched if not may_be_copy(before[path].stamp, now[path])]
    suspects += _within_bounds(root, copies)

    def is_replaced(path: str) -> bool:
        try:
            return content_of(source_media(root, path)) != before[path].content
        except (DataError, OSError):
            return False

    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        return frozenset(
            path
            for path, answer in zip(suspects, threads.map(is_replaced, suspects), strict=True)
            if answer
        )


def _within_bounds(root: DatasetPath, paths: Sequence[str]) -> list[str]:
    """Of the first `_MAX_COPIES` files those that have `_MAX_COPIED_BYTES` together."""
    found: list[str] = []
    num_bytes = 0
    for path in paths[:_MAX_COPIES]:
        with suppress(DataError, OSError):
            more = source_media(root, path).num_bytes
            if num_bytes + more <= _MAX_COPIED_BYTES:
                num_bytes += more
                found.append(path)
    return found


def _of(clip: Clip, known: Rows) -> Rows:
    return tuple(replace(row, clip=replace(clip, piece=row.clip.piece)) for row in known)
