"""JSON Lines files that a killed run may have left with a torn line."""

import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

import msgspec

from arachne.core.errors import DataError
from arachne.core.new_file import opened_anew
from arachne.core.refused_write import fix_of, refusal
from arachne.core.strict_json import from_json
from arachne.core.units import bytes_text

T = TypeVar("T")

_MOST_LINE_BYTES = 2**26
"""Tens of times a plan of 4,096 clips on 1,024 GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLines(Generic[T]):
    """What a file held, and one note for each line that was skipped."""

    values: tuple[T, ...]
    notes: tuple[str, ...]


class _Head(msgspec.Struct):
    """The fields that decide whether a line is worth reading."""

    step: int
    kind: str = ""


def append_line(path: Path, line: str) -> None:
    """Add one line to a file that only this process appends to; its folder is made if missing.

    A torn line of an earlier run is closed first, so that it cannot swallow the new one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(line.encode() + b"\n")


def read_json_lines(
    path: Path, kind: type[T], *, steps: Collection[int] | None = None
) -> JsonLines[T]:
    """All whole lines of a file, in order; a missing file has none.

    A line that is not JSON was torn by the end of an earlier run: it is skipped and noted.

    Args:
        path: The file.
        kind: What each line holds.
        steps: Read only lines whose `step` is one of these; None reads all.

    Raises:
        DataError: The file cannot be opened, or a line is JSON but not a `kind`.
    """
    values: list[T] = []
    notes: list[str] = []
    try:
        with path.open("rb") as file:
            for number, line in enumerate(_lines(file, path), start=1):
                if not line.strip():
                    continue
                try:
                    head = msgspec.json.decode(line, type=_Head) if steps is not None else None
                    if head is None or steps is None or head.step in steps:
                        values.append(from_json(line, kind, what=f"{path}, line {number}"))
                except (DataError, msgspec.MsgspecError, UnicodeDecodeError) as error:
                    if not _is_torn(line):
                        raise _wrong_line(path, number, error) from error
                    notes.append(
                        f"{path.name}: line {number} is torn and was skipped "
                        f"({len(line)} bytes; the run was interrupted while writing it)"
                    )
    except FileNotFoundError:
        return JsonLines(values=(), notes=())
    except OSError as error:
        raise DataError(f"cannot read {str(path)!r}: {refusal(error)}; {fix_of(error)}") from error
    return JsonLines(values=tuple(values), notes=tuple(notes))


def steps_in(path: Path) -> tuple[int, ...]:
    """The `step` of every whole line, ascending and once each; reads nothing else of a line."""
    found: set[int] = set()
    try:
        with path.open("rb") as file:
            for line in _lines(file, path):
                try:
                    found.add(msgspec.json.decode(line, type=_Head).step)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    continue
    except (OSError, DataError):
        return ()
    return tuple(sorted(found))


def keep_lines(path: Path, is_kept: Callable[[int, str], bool]) -> None:
    """Drop lines for good, by their `step` and `kind` (empty if they have none); torn ones too.

    The file is replaced in one go: a kill leaves either the old or the new one. A missing file
    stays missing.

    Raises:
        DataError: A line is longer than any of ours.
    """
    if not path.exists():
        return
    partial = path.with_name(path.name + ".partial")
    with path.open("rb") as file, opened_anew(partial) as kept:
        for line in _lines(file, path):
            try:
                head = msgspec.json.decode(line, type=_Head)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue
            if is_kept(head.step, head.kind):
                kept.write(line if line.endswith(b"\n") else line + b"\n")
    partial.replace(path)


def _lines(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """The lines of a file; one that would take the memory is refused.

    Raises:
        DataError: A line is longer than any of ours.
    """
    number = 1
    while line := file.readline(_MOST_LINE_BYTES + 1):
        if len(line) > _MOST_LINE_BYTES:
            raise DataError(
                f"{path}, line {number} has more than {bytes_text(_MOST_LINE_BYTES)}, which no run "
                "writes; move the file away, or keep the lines before that one"
            )
        yield line
        number += 1


def _wrong_line(path: Path, number: int, error: Exception) -> DataError:
    if isinstance(error, DataError):
        return error
    return DataError(f"{path}, line {number} cannot be read: {error}")


def _is_torn(line: bytes) -> bool:
    """A proper prefix of a JSON object is never JSON, so torn and foreign lines differ."""
    try:
        msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True
    return False
