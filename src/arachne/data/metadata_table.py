"""Read `metadata.csv`: one row per clip."""

import csv
import io
from collections.abc import Sequence

from arachne.core.clip import TimeSpan
from arachne.core.errors import DataError
from arachne.data.captions import as_caption
from arachne.data.uncaptioned import Uncaptioned

PATH_COLUMNS = ("video", "video_path", "path", "file_path", "file_name", "media_path")
CAPTION_COLUMNS = ("caption", "prompt", "text", "cap")
START_COLUMNS = ("start", "start_s")
END_COLUMNS = ("end", "end_s")
"""Names that a column may have, the first that is there counts; case and outer spaces do not."""


def read_metadata_table(text: str, name: str) -> list[Uncaptioned]:
    """The clips of a table with a header; columns of other names are left alone.

    Raises:
        DataError: No column holds paths, or a row is malformed; the message names the line.
    """
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [column.strip().lower() for column in next(reader, list[str]())]
        path_at = _column(header, PATH_COLUMNS, name)
        if path_at is None:
            raise DataError(
                f"{name} has no column for the file ({', '.join(PATH_COLUMNS)}); "
                f"found: {', '.join(header) or 'nothing'}"
            )
        columns = _Columns(
            width=len(header),
            path=path_at,
            caption=_column(header, CAPTION_COLUMNS, name),
            start=_column(header, START_COLUMNS, name),
            end=_column(header, END_COLUMNS, name),
        )
        return [
            columns.clip(row, f"{name} line {reader.line_num}")
            for row in reader
            if any(value.strip() for value in row)
        ]
    except csv.Error as error:
        raise DataError(f"{name} line {reader.line_num} is not CSV: {error}") from error


def _column(header: Sequence[str], names: Sequence[str], table: str) -> int | None:
    for name in names:
        if header.count(name) > 1:
            raise DataError(f"{table} has {header.count(name)} columns {name!r}; keep one")
        if name in header:
            return header.index(name)
    return None


class _Columns:
    """Where a table's columns are."""

    def __init__(
        self, *, width: int, path: int, caption: int | None, start: int | None, end: int | None
    ) -> None:
        self._width = width
        self._path = path
        self._caption = caption
        self._start = start
        self._end = end

    def clip(self, row: list[str], where: str) -> Uncaptioned:
        """One row as a clip; `where` names it in messages."""
        if len(row) > self._width:
            raise DataError(
                f"{where} has {len(row)} values for {self._width} columns; "
                "put captions that hold commas in double quotes"
            )
        path = _value(row, self._path).replace("\\", "/")
        if not path:
            raise DataError(f"{where} names no file")
        return Uncaptioned(
            path=path.removeprefix("./"),
            caption=as_caption(_value(row, self._caption)),
            span=_span(_value(row, self._start), _value(row, self._end), f"{where} ({path!r})"),
        )


def _value(row: list[str], column: int | None) -> str:
    return row[column].strip() if column is not None and column < len(row) else ""


def _span(start: str, end: str, where: str) -> TimeSpan | None:
    if not start and not end:
        return None
    if not end:
        raise DataError(f"{where} has a start but no end; give both in seconds, or neither")
    try:
        return TimeSpan(start_s=_seconds(start) if start else 0.0, end_s=_seconds(end))
    except ValueError as error:
        raise DataError(
            f"{where} has span {start!r} to {end!r}; write seconds or HH:MM:SS.sss"
        ) from error
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def _seconds(text: str) -> float:
    """`62.5`, `1:02.5` or `00:01:02.5`."""
    parts = text.split(":")
    if len(parts) > 3:
        raise ValueError(text)
    seconds = 0.0
    for part in parts:
        seconds = seconds * 60.0 + float(part)
    return seconds
