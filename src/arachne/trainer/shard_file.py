"""A safetensors file that is hashed while it is written, and whose damage can be placed.

Written in blocks, straight from the arrays: nothing is copied, and neither writing nor hashing
holds the interpreter, so that a thread can do it beside training. Layout of the format: 8 bytes
with the header's length, little endian; the header, JSON; then the arrays' bytes without a gap.
"""

import hashlib
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from arachne.core.new_file import opened_anew

_BLOCK_BYTES = 8 * 2**20
_ALIGNMENT = 8
_DTYPES = {"float32": "F32", "float64": "F64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Where an array's bytes lie in a file, and their CRC-32: it tells which array is damaged."""

    start_byte: int
    num_bytes: int
    crc32: int

    def __post_init__(self) -> None:
        assert self.start_byte >= 0, self
        assert self.num_bytes >= 0, self


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """What was written, and is on the disk."""

    sha256: str
    num_bytes: int
    extents: dict[str, Extent]


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> WrittenFile:
    """Write contiguous 1-D float arrays as safetensors, and wait until they are on the disk.

    Raises:
        OSError: The disk is full, or cannot be written.
    """
    # Wider elements first, so that every array starts at a multiple of its element's size.
    names = sorted(arrays, key=lambda name: -arrays[name].itemsize)
    header = _header(names, arrays)
    digest = hashlib.sha256(header)
    extents: dict[str, Extent] = {}
    position = len(header)
    with opened_anew(path) as file:
        _write_all(file.fileno(), memoryview(header))
        for name in names:
            content = arrays[name].data.cast("B") if arrays[name].size else memoryview(b"")
            crc32 = 0
            for begin in range(0, len(content), _BLOCK_BYTES):
                block = content[begin : begin + _BLOCK_BYTES]
                digest.update(block)
                crc32 = zlib.crc32(block, crc32)
                _write_all(file.fileno(), block)
            extents[name] = Extent(start_byte=position, num_bytes=len(content), crc32=crc32)
            position += len(content)
        os.fsync(file.fileno())
    return WrittenFile(sha256=digest.hexdigest(), num_bytes=position, extents=extents)


def damaged_extents(path: Path, extents: Mapping[str, Extent]) -> tuple[str, ...]:
    """Names of the arrays whose bytes are not what was written, in the file's order."""
    ordered: Sequence[str] = sorted(extents, key=lambda name: extents[name].start_byte)
    damaged: list[str] = []
    with path.open("rb") as file:
        for name in ordered:
            extent = extents[name]
            file.seek(extent.start_byte)
            crc32, left = 0, extent.num_bytes
            while left and (block := file.read(min(left, _BLOCK_BYTES))):
                crc32 = zlib.crc32(block, crc32)
                left -= len(block)
            if left or crc32 != extent.crc32:
                damaged.append(name)
    return tuple(damaged)


def _header(names: Sequence[str], arrays: Mapping[str, np.ndarray]) -> bytes:
    entries: dict[str, object] = {}
    position = 0
    for name in names:
        array = arrays[name]
        assert array.flags.c_contiguous, name
        end = position + array.nbytes
        entries[name] = {
            "dtype": _DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _write_all(descriptor: int, block: memoryview) -> None:
    """All of it: a single call may write less, as the last one before the disk is full does."""
    while block:
        block = block[os.write(descriptor, block) :]
