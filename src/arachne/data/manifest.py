"""The manifest: a ledger as one Parquet file, one row per clip."""

import io
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pyarrow  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet  # pyright: ignore[reportMissingTypeStubs]

from arachne.core.bucket import Bucket
from arachne.core.clip import Clip, TimeSpan
from arachne.core.errors import ArachneError, DamagedFileError, DataError, first_line
from arachne.core.ledger import Ledger, LedgerRow, Status
from arachne.core.refused_write import fix_of, refusal
from arachne.data.atomic_file import write_whole
from arachne.data.table_room import check_room

# pyarrow ships no types.
pa: Any = pyarrow
pq: Any = pyarrow.parquet

_VERSION = b"4"
_SCHEMA = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("start_s", pa.float64()),
        pa.field("end_s", pa.float64()),
        pa.field("piece_start_s", pa.float64()),
        pa.field("piece_end_s", pa.float64()),
        pa.field("caption", pa.string(), nullable=False),
        pa.field("other_captions", pa.list_(pa.string()), nullable=False),
        pa.field("dataset", pa.string(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("arithmetic", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("width", pa.int32()),
        pa.field("height", pa.int32()),
        pa.field("frames", pa.int32()),
        pa.field("num_tokens", pa.int64(), nullable=False),
        pa.field("content", pa.string(), nullable=False),
        pa.field("num_frames", pa.int32(), nullable=False),
        pa.field("is_decoded", pa.bool_(), nullable=False),
        pa.field("stamp", pa.string(), nullable=False),
    ],
    metadata={"arachne_manifest": _VERSION},
)


_LACKING = {b"3": ("stamp",), b"2": ("num_frames", "is_decoded", "stamp")}
"""Columns that manifests of earlier versions, which runs that have begun may have, are without."""

_SCHEMAS = {_VERSION: _SCHEMA} | {
    version: pa.schema(
        [field for field in _SCHEMA if field.name not in lacking],
        metadata={"arachne_manifest": version},
    )
    for version, lacking in _LACKING.items()
}


def write_manifest(ledger: Ledger, path: Path) -> None:
    """Write a ledger, whole or not at all.

    Raises:
        DataError: The disk is full, the folder cannot be written, or a text is not Unicode.
    """
    try:
        table = pa.Table.from_pylist([_as_dict(row) for row in ledger.rows], schema=_SCHEMA)
    except UnicodeEncodeError as error:
        raise DataError(
            f"{error.object!r:.80} holds half a character, which a manifest cannot; remove it"
        ) from error
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    write_whole(path, buffer.getvalue())


def read_manifest(
    path: Path,
    *,
    remedy: str = "restore it from a copy, or delete it to have the dataset read again",
) -> Ledger:
    """The ledger that was written.

    Args:
        path: The manifest.
        remedy: What to do where it is not there, damaged, or of another version: not every reader
            makes it anew.

    Raises:
        DamagedFileError: Its bytes are no manifest's.
        DataError: The file is missing, may not be read, needs more memory than there is, or is no
            manifest of this version.
    """
    what = f"manifest {str(path)!r} cannot be read"
    try:
        return _ledger_in(path.read_bytes())
    except OSError as error:
        fix = remedy if isinstance(error, FileNotFoundError) else fix_of(error)
        raise DataError(f"{what}: {refusal(error)}; {fix}") from error
    except MemoryError as error:
        raise DataError(f"{what}: memory does not suffice; end what else takes it") from error
    except DataError as error:
        raise type(error)(f"{what}: {error}; {remedy}") from error


def _ledger_in(content: bytes) -> Ledger:
    """The ledger that a manifest's bytes are.

    Raises:
        DamagedFileError: They are none.
        DataError: They need more memory than there is, or are of another version.
        MemoryError: The same, found on the way.
    """
    with _faults_named():
        file = pq.ParquetFile(io.BytesIO(content))
        metadata: dict[bytes, bytes] = file.schema_arrow.metadata or {}
        version = metadata.get(b"arachne_manifest", b"").decode()
    if version.encode() not in _SCHEMAS:
        *known, newest = sorted(map(bytes.decode, _SCHEMAS))
        raise DataError(
            f"it is of version {version or 'none'}; {', '.join(known)} and {newest} are read"
        )
    check_room(file.metadata, (), "it")
    with _faults_named():
        table = file.read()
        if not table.schema.equals(_SCHEMAS[version.encode()]):
            raise DataError("it has other columns")
        rows = cast(list[dict[str, Any]], table.to_pylist())
        return Ledger(rows=tuple(_as_row(row) for row in rows))


@contextmanager
def _faults_named() -> Generator[None, None, None]:
    """Turn what damaged bytes raise into a `DamagedFileError`."""
    try:
        yield
    except MemoryError:  # one of pyarrow's is also an `ArrowException`
        raise
    except (
        OSError,  # what pyarrow says of bytes that end early, or that no codec unpacks
        pa.ArrowException,
        UnicodeDecodeError,  # damaged text, which pyarrow decodes as it hands it over
        ArachneError,
        AssertionError,
    ) as error:
        raise DamagedFileError(first_line(error)) from error


def _as_dict(row: LedgerRow) -> dict[str, Any]:
    span, piece, bucket = row.clip.span, row.clip.piece, row.bucket
    return {
        "path": row.clip.path,
        "start_s": span.start_s if span else None,
        "end_s": span.end_s if span else None,
        "piece_start_s": piece.start_s if piece else None,
        "piece_end_s": piece.end_s if piece else None,
        "caption": row.clip.caption,
        "other_captions": row.clip.other_captions,
        "dataset": row.clip.dataset,
        "status": row.status,
        "arithmetic": row.arithmetic,
        "reason": row.reason,
        "width": bucket.width if bucket else None,
        "height": bucket.height if bucket else None,
        "frames": bucket.frames if bucket else None,
        "num_tokens": row.num_tokens,
        "content": row.content,
        "num_frames": row.num_frames,
        "is_decoded": row.is_decoded,
        "stamp": row.stamp,
    }


def _as_row(row: dict[str, Any]) -> LedgerRow:
    status: Status = row["status"]
    if status not in ("kept", "trimmed", "rejected"):
        raise DataError(f"unknown status {status!r}")
    extent = [row[name] for name in ("width", "height", "frames")]
    num_given = sum(side is not None for side in extent)
    if num_given != (0 if status == "rejected" else 3):
        given = "x".join("?" if side is None else str(side) for side in extent)
        raise DataError(
            f"clip {row['path']!r} is {status}, but its shape is {given if num_given else 'none'}"
        )
    width, height, frames = extent
    bucket = Bucket(width=width, height=height, frames=frames) if num_given else None
    return LedgerRow(
        clip=Clip(
            path=row["path"],
            caption=row["caption"],
            span=_span(row["start_s"], row["end_s"]),
            piece=_span(row["piece_start_s"], row["piece_end_s"]),
            other_captions=tuple(row["other_captions"]),
            dataset=row["dataset"],
        ),
        status=status,
        arithmetic=row["arithmetic"],
        reason=row["reason"],
        bucket=bucket,
        num_tokens=row["num_tokens"],
        content=row["content"],
        num_frames=row.get("num_frames", 0),
        is_decoded=row.get("is_decoded", False),
        stamp=row.get("stamp", ""),
    )


def _span(start_s: float | None, end_s: float | None) -> TimeSpan | None:
    if start_s is None or end_s is None:
        return None
    return TimeSpan(start_s=start_s, end_s=end_s)
