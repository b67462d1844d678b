"""Encoded clips on disk, named by what they were made of, so that a stale one is never found.

One safetensors file per clip and encoder. Video and text have keys of their own: a new text
encoder leaves the latents as they are, and a new resolution leaves the text.
"""

import hashlib
import json
import os
import struct
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from arachne.core.bucket import Bucket
from arachne.core.clip import TimeSpan
from arachne.core.errors import DamagedFileError, DataError
from arachne.data.atomic_file import CACHE_FIX, cannot_write, write_whole
from arachne.data.decode import DECODE_VERSION
from arachne.data.frame_size import Fit

_TENSOR = "array"
_FRAMES = "decoded_frames"
_MAX_HEADER_BYTES = 2**20


def video_key(
    content: str,
    span: TimeSpan | None,
    bucket: Bucket,
    fps: float,
    fingerprint: str,
    fit: Fit = "crop",
) -> str:
    """The key of a clip's latents: source bytes, span, shape, rate, fit, decoder and encoder."""
    seconds = None if span is None else [span.start_s, span.end_s]
    shape = str(bucket) if fit == "crop" else f"{bucket} {fit}"
    return _digest(["video", DECODE_VERSION, content, seconds, shape, fps, fingerprint])


def text_key(caption: str, fingerprint: str, seen: str | None = None) -> str:
    """The key of a caption's token states: its words and the encoder.

    `seen` is the key of the picture that the encoder looks at; None for one that sees none.
    """
    return _digest(["text", caption, fingerprint, *([] if seen is None else [seen])])


def first_frame_key(
    content: str, span: TimeSpan | None, bucket: Bucket, fps: float, fit: Fit = "crop"
) -> str:
    """The key of a clip's first frame: clips that differ in length alone have the same."""
    return video_key(content, span, replace(bucket, frames=1), fps, "first frame", fit)


def _digest(parts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(parts, ensure_ascii=True).encode()).hexdigest()


class LatentCache:
    """Arrays by key in a folder; any number of processes and machines may share it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path_of(self, key: str) -> Path:
        """Where the array of a key lies; spread over 256 folders."""
        return self._folder / key[:2] / f"{key}.safetensors"

    def has(self, key: str) -> bool:
        """Whether a whole file is there; a truncated one counts as absent, to be made again."""
        return self._metadata(key) is not None

    def _metadata(self, key: str) -> dict[str, str] | None:
        """What the header of a whole file says; None if there is none."""
        path = self.path_of(key)
        try:
            with _opened(path) as file:
                header = _header(file.read(8 + _MAX_HEADER_BYTES))
        except (OSError, DataError):
            return None
        is_whole = path.stat().st_size == header.end and header.metadata.get("key") == key
        return header.metadata if is_whole else None

    def get(self, key: str) -> NDArray[Any]:
        """The array of a key.

        Raises:
            DamagedFileError: A bit was flipped, a part is missing, or it is of another key.
            DataError: There is none, or it cannot be read.
        """
        path = self.path_of(key)
        try:
            with _opened(path) as file:
                content = file.read()
            metadata = _header(content).metadata
            array = load(content)[_TENSOR]
        except FileNotFoundError as error:
            raise DataError(f"no cached array {path.name}; train again to encode it") from error
        except OSError as error:
            raise DataError(f"cached array {str(path)!r} cannot be read: {error}") from error
        except (SafetensorError, KeyError, DataError) as error:
            raise DamagedFileError(f"{_damaged(path)}: {error}") from error
        if metadata.get("key") != key:
            raise DamagedFileError(f"{_damaged(path)}: it holds the array of another key")
        if metadata.get("shape") != json.dumps(list(array.shape)):
            raise DamagedFileError(f"{_damaged(path)}: its shape is not the one that was written")
        if metadata.get("sha256") != _sha256(array):
            raise DamagedFileError(f"{_damaged(path)}: its bytes are not those that were written")
        return array

    def discard(self, key: str) -> None:
        """Delete an array, so that it is made again; one that cannot be deleted stays."""
        with suppress(OSError):
            self.path_of(key).unlink(missing_ok=True)

    def frames_of(self, key: str) -> int | None:
        """How many frames decoding has counted for an array; None if it is not known."""
        metadata = self._metadata(key)
        found = metadata.get(_FRAMES, "") if metadata is not None else ""
        return int(found) if found.isdecimal() else None

    def put(self, key: str, array: NDArray[Any], *, num_frames: int | None = None) -> None:
        """Store an array whole or not at all; an older one of the same key is replaced.

        `num_frames` is how many frames decoding has counted for it.

        Raises:
            DataError: The disk is full, or the folder cannot be written.
        """
        whole = np.ascontiguousarray(array)
        metadata = {
            "key": key,
            "shape": json.dumps(list(whole.shape)),
            "sha256": _sha256(whole),
        }
        if num_frames is not None:
            metadata[_FRAMES] = str(num_frames)
        content = _in_key_order(save({_TENSOR: whole}, metadata=metadata))
        write_whole(self.path_of(key), content, fix=CACHE_FIX)


def check_cache(folder: Path) -> None:
    """Look, before all the work, whether a cache can be written there; nothing stays behind.

    One that holds something may be only for reading: it is enough if every array is in it.

    Raises:
        DataError: It cannot.
    """
    standing = folder.absolute()
    try:
        if standing.is_dir() and any(standing.iterdir()):
            return
        while not standing.exists():
            standing = standing.parent
        with tempfile.TemporaryFile(dir=standing):
            pass
    except OSError as error:
        raise cannot_write(folder, error, CACHE_FIX) from error


def _damaged(path: Path) -> str:
    return f"cached array {str(path)!r} is damaged; delete it, and train again to encode it"


def _sha256(array: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def _in_key_order(content: bytes) -> bytes:
    """A safetensors file with its header's keys sorted: the library's order is a new one each time.

    So equal arrays of one key are equal files, whoever wrote them.
    """
    (header_bytes,) = struct.unpack("<Q", content[:8])
    table = json.loads(content[8 : 8 + header_bytes])
    header = json.dumps(table, sort_keys=True, separators=(",", ":")).encode()
    assert len(header) <= header_bytes, "only the order of the keys may differ"
    return content[:8] + header.ljust(header_bytes) + content[8 + header_bytes :]


class _Header:
    """What the first bytes of a safetensors file promise."""

    def __init__(self, metadata: dict[str, str], end: int) -> None:
        self.metadata = metadata
        self.end = end


def _opened(path: Path) -> BinaryIO:
    """A file to read; a pipe in its place is empty, and nobody waits for who writes to it."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NONBLOCK)

    return open(path, "rb", opener=opener)


def _header(start: bytes) -> _Header:
    """Parse a safetensors header: 8 bytes of length, JSON, then the tensors' bytes."""
    if len(start) < 8:
        raise DataError("the file is shorter than its header")
    (header_bytes,) = struct.unpack("<Q", start[:8])
    if header_bytes > _MAX_HEADER_BYTES or len(start) < 8 + header_bytes:
        raise DataError("the file's header is not whole")
    try:
        table = cast(dict[str, Any], json.loads(start[8 : 8 + header_bytes]))
        metadata = msgspec.convert(table["__metadata__"], dict[str, str])
        end = int(table[_TENSOR]["data_offsets"][1])
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError) as error:
        raise DataError("the file's header cannot be read") from error
    return _Header(metadata, 8 + header_bytes + end)
