"""From the rows of a table to clips, by the names of columns that T2V datasets use.

Known are our own names and those of the public tables as they are published: OpenVid-1M and
Open-Sora (one clip a row), Koala-36M (one span a row), Panda-70M (one source video a row, with
lists of spans and captions) and MiraData (one span a row, captions of several lengths).
"""

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import count, takewhile
from typing import Any, cast

from arachne.core.clip import TimeSpan
from arachne.core.errors import DataError
from arachne.data.captions import as_caption
from arachne.data.columnar_table import InTable
from arachne.data.dataset_hints import separator_hint
from arachne.data.table_rows import Table, TableRow
from arachne.data.uncaptioned import Uncaptioned

PATH_COLUMNS = (
    *("video", "video_path", "path", "file_path", "file_name", "media_path"),
    *("image", "image_path"),
)
"""Of several the first counts that says something in a row: `image` where `video` is empty."""

ID_COLUMNS = ("videoid", "video_id")
"""Name the source video; its file is called like it."""

CAPTION_COLUMNS = ("caption", "prompt", "text", "cap", "dense_caption", "short_caption")
START_COLUMNS = ("start", "start_s", "start_timestep")
END_COLUMNS = ("end", "end_s", "end_timestep")
SPAN_COLUMNS = ("timestamp",)
"""Start and end in one: a list of two times, or a list of such lists. Of each kind the first name
that a table has counts."""

_READ = frozenset(
    PATH_COLUMNS + ID_COLUMNS + CAPTION_COLUMNS + START_COLUMNS + END_COLUMNS + SPAN_COLUMNS
)
_MAX_LIST_TEXT = 2**20
_MAX_S = 1e9

FindMedia = Callable[[str], str]
"""The path, relative to the dataset's folder, of the media file that is called like an id."""


def is_read(column: str) -> bool:
    """Whether a column of this name, in small letters, may say anything of a clip."""
    stem, _, number = column.rpartition("_")
    return column in _READ or (number.isdecimal() and stem in CAPTION_COLUMNS)


def table_clips(table: Table, find_media: FindMedia) -> list[Uncaptioned]:
    """The clips of a table; columns of other names are left alone.

    Raises:
        DataError: No column names files, or a row is malformed; the message names the row.
    """
    paths = tuple(name for name in PATH_COLUMNS if name in table.columns)
    video_id = _first(ID_COLUMNS, table)
    if not paths and video_id is None:
        raise DataError(
            f"{table.name} has no column for the file ({', '.join(PATH_COLUMNS + ID_COLUMNS)}); "
            f"found: {', '.join(table.columns) or 'nothing'}{_separator_hint(table)}"
        )
    caption = _first(CAPTION_COLUMNS, table)
    more = (f"{caption}_{number}" for number in count(2))
    columns = _Columns(
        table=table.name,
        paths=paths,
        video_id=video_id,
        caption=caption,
        more_captions=tuple(takewhile(table.columns.__contains__, more)),
        start=_first(START_COLUMNS, table),
        end=_first(END_COLUMNS, table),
        span=_first(SPAN_COLUMNS, table),
        find_media=find_media,
    )
    return [clip for row in table.rows for clip in columns.clips(row)]


def _separator_hint(table: Table) -> str:
    hint = separator_hint(table.columns)
    return f"; {hint}" if hint else ""


def _first(names: Sequence[str], table: Table) -> str | None:
    return next((name for name in names if name in table.columns), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """Which columns of a table say what; `table` is its name."""

    table: str
    paths: Sequence[str]
    video_id: str | None
    caption: str | None
    more_captions: tuple[str, ...]
    start: str | None
    end: str | None
    span: str | None
    find_media: FindMedia

    def clips(self, row: TableRow) -> Iterator[Uncaptioned]:
        """A row's clips: one, or one for each of its spans; with a fault if its cell is empty."""
        path = self._media_path(row)
        if path is None:
            yield Uncaptioned(path=row.where, caption=None, fault=f"{row.where} names no file")
            return
        where = f"{row.where} ({path!r})"
        caption = self._value(row, self.caption)
        spans = _listed(self._value(row, self.span), where) if self.span else None
        if spans == []:
            fault = f"{row.where} lists no span in {self.span!r}"
            yield Uncaptioned(path=path, caption=None, fault=fault)
            return
        if spans and all(isinstance(span, list) for span in spans):
            yield from _clips_of_spans(path, spans, caption, where)
            return
        if spans:
            if len(spans) != 2:
                raise DataError(f"{where} has {len(spans)} times in {self.span!r}; it needs two")
            start, end = spans
        else:
            start, end = self._value(row, self.start), self._value(row, self.end)
        captions = _captions(caption, where)
        for column in self.more_captions:
            captions += _captions(self._value(row, column), where)
        yield Uncaptioned(
            path=path,
            caption=captions[0] if captions else None,
            span=_span(start, end, where),
            other_captions=tuple(captions[1:]),
        )

    def _media_path(self, row: TableRow) -> str | None:
        """Of the row's file; None where a column that holds media has nothing in it."""
        has_media = False
        for column in self.paths:
            value = self._value(row, column)
            if isinstance(value, dict):  # a Hugging Face column of videos or pictures
                has_media = True
                found = cast(dict[str, Any], value)
                value = found.get("path")
                if isinstance(found.get("bytes"), InTable):
                    return f"{self.table}/{found['bytes'].member}"
            if path := _path_text(value):
                return path
        if path := _path_text(self._value(row, self.video_id)):
            return self.find_media(path)
        if has_media:
            return None
        raise DataError(f"{row.where} names no file")

    @staticmethod
    def _value(row: TableRow, column: str | None) -> Any:
        value = row.values.get(column) if column is not None else None
        return value.strip() if isinstance(value, str) else value


def _path_text(value: Any) -> str | None:
    if not isinstance(value, str | int) or isinstance(value, bool):
        return None
    return str(value).strip().replace("\\", "/").removeprefix("./") or None


def _clips_of_spans(
    path: str, spans: Sequence[Any], captions: Any, where: str
) -> Iterator[Uncaptioned]:
    texts = _listed(captions, where) or [None] * len(spans)
    if len(texts) != len(spans):
        raise DataError(f"{where} has {len(spans)} spans but {len(texts)} captions")
    for span, text in zip(spans, texts, strict=True):
        times = cast(list[Any], span)
        if len(times) != 2:
            raise DataError(f"{where} has a span of {len(times)} times; each needs two")
        yield Uncaptioned(
            path=path, caption=_caption(text, where), span=_span(times[0], times[1], where)
        )


def _captions(value: Any, where: str) -> list[str]:
    """A caption, or all those of a list; what is empty is none."""
    values = cast(list[Any], value) if isinstance(value, list) else [value]
    found = [_caption(each, where) for each in values]
    return [caption for caption in found if caption]


def _caption(value: Any, where: str) -> str | None:
    if value is None or isinstance(value, str):
        return None if value is None else as_caption(value)
    found = "bytes" if isinstance(value, dict) and "bytes" in value else f"{value!r:.60}"
    raise DataError(f"{where} has {found} as its caption; it must be text")


def _listed(value: Any, where: str) -> list[Any] | None:
    """A list, also one that is written out as text: Koala's and Panda's tables hold Python's."""
    if value is None or value == "":
        return None
    if isinstance(value, str):
        if len(value) > _MAX_LIST_TEXT:
            raise DataError(f"{where} has a list of {len(value):,} characters; too long")
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            raise DataError(f"{where} has {value!r:.60} where a list is needed") from error
    if not isinstance(value, list | tuple):
        raise DataError(f"{where} has {value!r:.60} where a list is needed")
    return [list(cast(Sequence[Any], v)) if isinstance(v, tuple) else v for v in cast(Any, value)]


def _span(start: Any, end: Any, where: str) -> TimeSpan | None:
    if start in (None, "") and end in (None, ""):
        return None
    if end in (None, ""):
        raise DataError(f"{where} has a start but no end; give both in seconds, or neither")
    try:
        return TimeSpan(start_s=_seconds(start or 0), end_s=_seconds(end))
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(
            f"{where} has span {start!r} to {end!r}; write seconds or HH:MM:SS.sss"
        ) from error
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def _seconds(value: Any) -> float:
    """`62.5` as a number or as text, `1:02.5` or `00:01:02.5`.

    Raises:
        TypeError, ValueError, OverflowError: It is no time.
    """
    if isinstance(value, bool) or not isinstance(value, str):
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            raise TypeError(value)
        return _bounded(float(value))
    parts = value.split(":")
    if len(parts) > 3:
        raise ValueError(value)
    seconds = 0.0
    for part in parts:
        seconds = seconds * 60.0 + float(part)
    return _bounded(seconds)


def _bounded(seconds: float) -> float:
    """Times in other units, or no times at all, are no seconds of a video: 1e9 are 31 years."""
    if seconds > _MAX_S:
        raise ValueError(seconds)
    return seconds
