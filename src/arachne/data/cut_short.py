"""Whether a container's own framing promises more than the file holds.

Read from the first bytes of each part, before and beside FFmpeg, which says only that it finds
nothing. Sources: ISO/IEC 14496-12 (boxes), RFC 8794 and RFC 9559 (EBML, Matroska), the RIFF and
GIF89a specifications. MPEG streams have no frame around them: a cut one is just shorter.
"""

import struct
from typing import BinaryIO

from arachne.data.media_file import MediaFile

_BOX_TYPES = (b"ftyp", b"styp", b"moov", b"moof", b"mdat", b"wide", b"free", b"skip", b"pnot")
_MAX_BOXES = 100_000
_EBML = b"\x1a\x45\xdf\xa3"
_SEGMENT = b"\x18\x53\x80\x67"


def cut_short(file: MediaFile) -> str | None:
    """How the file was cut short, by its container's framing; None where that shows no cut."""
    with file.open() as opened:
        head = opened.read(16)
        if head[4:8] in _BOX_TYPES:
            fault = _of_boxes(opened, file.num_bytes)
        elif head.startswith(_EBML):
            fault = _of_matroska(opened, file.num_bytes)
        elif head.startswith(b"RIFF") and len(head) >= 8:
            fault = _of_riff(int.from_bytes(head[4:8], "little"), file.num_bytes)
        elif head.startswith((b"GIF87a", b"GIF89a")):
            fault = _of_gif(opened)
        else:
            fault = None
    return None if fault is None else f"the file is cut short: {fault}"


def _lacks(part: str, part_bytes: int, end: int, num_bytes: int) -> str | None:
    missing = end - num_bytes
    return f"{part} lacks {missing:,} of {part_bytes:,} bytes" if missing > 0 else None


def _of_riff(chunk_bytes: int, num_bytes: int) -> str | None:
    """AVI: one chunk holds all, or the first gigabyte; a size of all ones is none."""
    if chunk_bytes == 2**32 - 1:
        return None
    return _lacks("its RIFF chunk", chunk_bytes, 8 + chunk_bytes, num_bytes)


def _of_boxes(file: BinaryIO, num_bytes: int) -> str | None:
    """MP4 and QuickTime: boxes of known size, one of which, moov, is the index."""
    at, seen = 0, set[bytes]()
    for _ in range(_MAX_BOXES):
        if at >= num_bytes:
            break
        file.seek(at)
        header = file.read(16)
        if len(header) < 8:
            return "it ends within the header of a box"
        size, kind = struct.unpack(">I4s", header[:8])
        if size == 1 and len(header) == 16:
            size = int.from_bytes(header[8:], "big")
        elif size == 0:  # up to the end; also what an unfinished recording says
            size = num_bytes - at
        if size < 8:
            return None
        seen.add(kind)
        at += size
        if at > num_bytes:
            return _lacks(f"its box {kind.decode('latin-1')!r}", size, at, num_bytes)
    if b"moov" in seen or b"meta" in seen:  # meta: a HEIF picture, which has no moov
        return None
    return "its index (moov) is missing; the recording or the copy ended too early"


def _of_matroska(file: BinaryIO, num_bytes: int) -> str | None:
    """Matroska and WebM: an EBML header, then one segment, whose size a finished file states."""
    file.seek(len(_EBML))
    header_bytes = _vint(file)
    if header_bytes is None:
        return None
    file.seek(header_bytes, 1)
    kind = file.read(len(_SEGMENT))
    if len(kind) < len(_SEGMENT):
        return "it ends within its header"
    segment_bytes = _vint(file) if kind == _SEGMENT else None
    if segment_bytes is None:
        return None
    return _lacks("its segment", segment_bytes, file.tell() + segment_bytes, num_bytes)


def _vint(file: BinaryIO) -> int | None:
    """An EBML number of 1 to 8 bytes; None where it is not known (all ones) or not there."""
    first = file.read(1)
    if not first or not first[0]:
        return None
    length = 9 - first[0].bit_length()
    rest = file.read(length - 1)
    value = int.from_bytes(first + rest, "big") & ((1 << 7 * length) - 1)
    return None if len(rest) < length - 1 or value == (1 << 7 * length) - 1 else value


def _of_gif(file: BinaryIO) -> str | None:
    """GIF: blocks of sub-blocks, then one byte, the trailer."""
    file.seek(10)
    flags = file.read(1)
    file.seek(2 + _color_table_bytes(flags), 1)
    while True:
        kind = file.read(1)
        if not kind:
            return "its trailer is missing"
        if kind == b"\x2c":
            descriptor = file.read(9)
            file.seek(1 + _color_table_bytes(descriptor[8:]), 1)
        elif kind == b"\x21":
            file.seek(1, 1)
        else:
            return None
        while length := file.read(1):
            if length == b"\0":
                break
            file.seek(length[0], 1)


def _color_table_bytes(flags: bytes) -> int:
    return 3 << ((flags[0] & 7) + 1) if flags and flags[0] & 0x80 else 0
