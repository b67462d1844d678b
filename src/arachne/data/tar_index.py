"""Where the members of a tar lie, so that each is read in place: nothing is ever extracted.

Python's tarfile reads the headers, from a file that refuses reads of more than a header needs.
Only regular files can be read; of every other member it is remembered why not.
"""

import re
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from io import BufferedReader
from typing import Any, cast

from arachne.core.errors import DataError
from arachne.data.file_identity import remembered
from arachne.data.media_file import MediaFile
from arachne.data.remote_path import DatasetPath

MAX_MEMBERS = 2**20
"""Members of one tar. *Assumption*: shards hold thousands."""

_MAX_HEADER_BYTES = 2**20
"""Of a long name or of a member's extended header."""

_BLOCK_BYTES = 512
_PACKINGS = {
    b"\x1f\x8b\x08": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}
"""By the first bytes of what they write."""

_REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_KINDS = {
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.LNKTYPE: "a hard link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
    tarfile.DIRTYPE: "a folder",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TarMember:
    """One member of a tar.

    Attributes:
        offset: Where its bytes begin in the tar.
        num_bytes: How many they are.
        refusal: Why it cannot be read; None if it can.
    """

    offset: int
    num_bytes: int
    refusal: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TarIndex:
    """The members of a tar.

    Attributes:
        members: By name, in the tar's order; a leading `./` is left out.
        fault: Why members may be missing behind the last one; None if all are there.
    """

    members: Mapping[str, TarMember] = field(default_factory=dict[str, TarMember])
    fault: str | None = None

    def slice_of(self, path: DatasetPath, name: str) -> MediaFile:
        """A member's bytes in the tar at `path`.

        Raises:
            DataError: There is no such member, or it cannot be read.
        """
        member = self.members.get(name)
        if member is None:
            raise DataError(f"{path.name!r} has no member {name!r}")
        if member.refusal is not None:
            raise DataError(f"member {name!r} of {path.name!r} {member.refusal}")
        return MediaFile(path=path, offset=member.offset, num_bytes=member.num_bytes)


def _read_index(file: MediaFile) -> TarIndex:
    members: dict[str, TarMember] = {}
    with file.path.open("rb") as opened:  # not all of it, where it is far away
        packings = [name for mark, name in _PACKINGS.items() if opened.peek(8).startswith(mark)]
        fault = (
            f"it is compressed by {packings[0]}; decompress it"
            if packings
            else _collect(opened, file.num_bytes, members)
        )
    return TarIndex(members=members, fault=fault)


tar_index: Callable[[DatasetPath | MediaFile], TarIndex] = remembered(_read_index, max_files=16)
"""The index of a tar; the last ones read are remembered. Damage is in its `fault`."""


def _collect(file: BufferedReader, num_bytes: int, members: dict[str, TarMember]) -> str | None:
    """Add all members up to the end or the first fault, which is returned."""
    headers: Any = _Headers(file, num_bytes)
    last = "its beginning"
    try:
        tar = tarfile.TarFile(fileobj=headers, mode="r", encoding="utf-8")
        while (info := tar.next()) is not None:
            if len(members) == MAX_MEMBERS:
                return f"it has more than {MAX_MEMBERS:,} members; write smaller shards"
            name = info.name.removeprefix("./")
            last = f"member {name!r}"
            member = _member(info, num_bytes)
            if name in members:
                member = replace(member, refusal="is there twice; keep one")
            members[name] = member
            if info.size < 0:
                return f"it is damaged: {last} has {info.size} bytes"
        return _end_fault(file, tar.offset, last)
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        return f"it is damaged or cut short after {last}: {error}"


def _member(info: tarfile.TarInfo, num_bytes: int) -> TarMember:
    return TarMember(
        offset=info.offset_data, num_bytes=info.size, refusal=_refusal(info, num_bytes)
    )


def _refusal(info: tarfile.TarInfo, num_bytes: int) -> str | None:
    if info.name.startswith(("/", "\\")):
        return "has an absolute name"
    if ".." in re.split(r"[/\\]", info.name):
        return "has '..' in its name"
    if info.type not in _REGULAR or cast(Any, info).sparse is not None:
        kind = _KINDS.get(info.type, "of a kind that is not read")
        return f"is {kind}; only regular files are read"
    if not 0 <= info.offset_data <= info.offset_data + info.size <= num_bytes:
        missing = info.offset_data + info.size - num_bytes
        return f"is cut short: {missing:,} of {info.size:,} bytes are missing"
    return None


def _end_fault(file: BufferedReader, offset: int, last: str) -> str | None:
    """Why the tar does not end at `offset` as it must: with blocks of zeros and no more."""
    file.seek(offset)
    end = file.read(_BLOCK_BYTES)
    if not end:
        return f"it is cut short: no end marker follows {last}"
    if any(end):
        return f"it is damaged after {last}: what follows is no header"
    if any(file.read(_MAX_HEADER_BYTES)):
        return f"data follow its end marker, after {last}; tars that were joined must be split"
    return None


class _Headers:
    """A file that gives headers and no more: a long name cannot claim gigabytes."""

    def __init__(self, file: BufferedReader, num_bytes: int) -> None:
        self._file = file
        self._num_bytes = num_bytes
        self.name = None

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _MAX_HEADER_BYTES:
            raise ValueError(f"a header of {size:,} bytes is over {_MAX_HEADER_BYTES:,}")
        return self._file.read(size)

    def seek(self, offset: int) -> int:
        """To the end where the offset lies beyond: file systems refuse the largest."""
        return self._file.seek(min(offset, self._num_bytes))

    def tell(self) -> int:
        return self._file.tell()
