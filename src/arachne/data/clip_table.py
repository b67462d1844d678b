"""From the rows of a table to clips, by the names of columns that T2V datasets use.

Known are our own names and those of the public tables as they are published: OpenVid-1M and
Open-Sora (one clip a row), Koala-36M (one span a row), Panda-70M (one source video a row, with
lists of spans and captions) and MiraData (one span a row, captions of several lengths).

A row's times are those of its source video. Koala-36M and MiraData are also distributed, and
downloaded by their own tools, as clips that are cut out already: these have names of their own.
"""

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import count, takewhile
from math import isfinite, isnan
from typing import Any, cast

from arachne.core.clip import TimeSpan
from arachne.core.errors import DataError
from arachne.core.units import names_text
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
"""Name the source video, or a clip of it; the file is called like it."""

INDEX_COLUMN = "index"
"""Of MiraData, `000000008783_AJp_ANXoGoM-000114`: counts beside an id in a column above alone."""

CAPTION_COLUMNS = ("caption", "prompt", "text", "cap", "dense_caption", "short_caption")
START_COLUMNS = ("start", "start_s", "start_timestep")
END_COLUMNS = ("end", "end_s", "end_timestep")
SPAN_COLUMNS = ("timestamp",)
"""Start and end in one: a list of two times, or a list of such lists. Of each kind the first name
that a table has counts."""

FRAME_COLUMNS = ("start_frame", "end_frame", "fps")
"""Where MiraData's times are exactly: those of `start_timestep` and `end_timestep` are rounded to
whole seconds."""

_READ = {INDEX_COLUMN} | frozenset(
    (PATH_COLUMNS + ID_COLUMNS + CAPTION_COLUMNS)
    + (START_COLUMNS + END_COLUMNS + SPAN_COLUMNS + FRAME_COLUMNS)
)
_KOALA_COLUMNS = ("videoid", "timestamp")
_CLIP_ID = re.compile(r"([A-Za-z0-9_-]{11})_[0-9]+")
"""Koala-36M's: the id of a video of YouTube, and which of its clips, in a table of those columns.
An id of 11 signs alone, which may end so too, is no clip's."""

_MAX_LIST_TEXT = 2**20
_MAX_S = 1e9

FindMedia = Callable[[str], Sequence[str]]
"""The paths, relative to the dataset's folder, of the media files of a name without its ending."""


def is_read(column: str) -> bool:
    """Whether a column of this name, in small letters, may say anything of a clip."""
    stem, _, number = column.rpartition("_")
    return column in _READ or (number.isdecimal() and stem in CAPTION_COLUMNS)


def names_files(columns: Sequence[str]) -> bool:
    """Whether a table with columns of these names says which files its clips are in."""
    return any(name in columns for name in PATH_COLUMNS + ID_COLUMNS)


def table_clips(table: Table, find_media: FindMedia) -> list[Uncaptioned]:
    """The clips of a table; columns of other names are left alone.

    Raises:
        DataError: No column names files.
    """
    if not names_files(table.columns):
        raise DataError(
            f"{table.name} has no column for the file ({', '.join(PATH_COLUMNS + ID_COLUMNS)}); "
            f"found: {', '.join(table.columns) or 'nothing'}{_separator_hint(table)}"
        )
    caption = _first(CAPTION_COLUMNS, table)
    more = (f"{caption}_{number}" for number in count(2))
    columns = _Columns(
        table=table.name,
        paths=tuple(name for name in PATH_COLUMNS if name in table.columns),
        video_id=_first(ID_COLUMNS, table),
        caption=caption,
        more_captions=tuple(takewhile(table.columns.__contains__, more)),
        start=_first(START_COLUMNS, table),
        end=_first(END_COLUMNS, table),
        span=_first(SPAN_COLUMNS, table),
        find_media=find_media,
    )
    return [clip for row in table.rows for clip in columns.clips(row)]


def captions_of_fields(fields: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """The captions of an object, whose names are in small letters: of the first caption column that
    says anything, and of its second, third, ... ones; `where` is what messages call the object.

    Raises:
        DataError: One of them is no text.
    """
    for name in CAPTION_COLUMNS:
        if captions := _captions(fields.get(name), where):
            more = takewhile(fields.__contains__, (f"{name}_{number}" for number in count(2)))
            return (*captions, *(text for each in more for text in _captions(fields[each], where)))
    return ()


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

    def clips(self, row: TableRow) -> list[Uncaptioned]:
        """A row's clips: one, or one for each of its spans; one with a fault if the row is
        malformed, names no file, or its id may mean several."""
        try:
            return list(self._clips(row))
        except DataError as error:
            return [Uncaptioned(path=row.where, caption=None, fault=str(error))]

    def _clips(self, row: TableRow) -> Iterator[Uncaptioned]:
        paths, is_cut = self._media_paths(row)
        if len(paths) != 1:
            fault = _ambiguous(row, paths) if paths else f"{row.where} names no file"
            yield Uncaptioned(path=row.where, caption=None, fault=fault)
            return
        (path,) = paths
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
        if spans and len(spans) != 2:
            raise DataError(f"{where} has {len(spans)} times in {self.span!r}; it needs two")
        start, end = spans or self._start_and_end(row, where)
        captions = _captions(caption, where)
        for column in self.more_captions:
            captions += _captions(self._value(row, column), where)
        yield Uncaptioned(
            path=path,
            caption=captions[0] if captions else None,
            span=None if is_cut else _span(start, end, where),
            other_captions=tuple(captions[1:]),
        )

    def _media_paths(self, row: TableRow) -> tuple[Sequence[str], bool]:
        """Of the row's file, or of all that it may mean; none where it says nothing. And whether
        they are cut to the row's times already."""
        for column in self.paths:
            value = self._value(row, column)
            if isinstance(value, dict):  # a Hugging Face column of videos or pictures
                found = cast(dict[str, Any], value)
                value = found.get("path")
                if isinstance(found.get("bytes"), InTable):
                    return (f"{self.table}/{found['bytes'].member}",), False
            if path := _path_text(value):
                return (path,), False
        if video_id := _path_text(self._value(row, self.video_id)):
            for name, is_cut in self._names(row, video_id):
                if paths := self.find_media(name):
                    return paths, is_cut
            return (f"{video_id}.mp4",), False  # rejected later, by name
        return (), False

    def _names(self, row: TableRow, video_id: str) -> Sequence[tuple[str, bool]]:
        """What the file of an id may be called, without its ending, and whether one that is called
        so is cut to the row's times. The first that is there counts."""
        index = _path_text(self._value(row, INDEX_COLUMN)) or ""
        found = re.fullmatch(rf"([0-9]+_{re.escape(video_id)})-[0-9]+", index)
        if found is not None:
            return (index, True), (found[1], False), (video_id, False)
        found = _CLIP_ID.fullmatch(video_id)
        is_koala = (self.video_id, self.span) == _KOALA_COLUMNS
        if found is not None and is_koala and self._value(row, self.span) not in (None, ""):
            return (video_id, True), (found[1], False)
        return ((video_id, False),)

    def _start_and_end(self, row: TableRow, where: str) -> tuple[Any, Any]:
        start, end = self._value(row, self.start), self._value(row, self.end)
        frames = [self._value(row, column) for column in FRAME_COLUMNS]
        if self.start != "start_timestep" or any(each in (None, "") for each in frames):
            return start, end
        try:
            first, last, fps = map(float, frames)
            if not all(map(isfinite, (first, last, fps))):
                return start, end
            return first / fps, last / fps
        except (ValueError, TypeError, OverflowError, ZeroDivisionError) as error:
            shown = ", ".join(map(_shown, frames))
            raise DataError(
                f"{where} has {shown} as {', '.join(FRAME_COLUMNS)}; write numbers, or leave all "
                "three empty"
            ) from error

    @staticmethod
    def _value(row: TableRow, column: str | None) -> Any:
        value = row.values.get(column) if column is not None else None
        if isinstance(value, float) and isnan(value):  # how pandas and numpy say none
            return None
        return value.strip() if isinstance(value, str) else value


def _ambiguous(row: TableRow, paths: Sequence[str]) -> str:
    return (
        f"{row.where} names no file but an id that {len(paths)} files are called by: "
        f"{names_text(paths)}; write the path of the one that is meant into a column "
        f"{PATH_COLUMNS[0]!r}, or rename the others"
    )


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
    found = "bytes" if isinstance(value, dict) and "bytes" in value else _shown(value)
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
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
            raise DataError(f"{where} has {_shown(value)} where a list is needed") from error
    if not isinstance(value, list | tuple):
        raise DataError(f"{where} has {_shown(value)} where a list is needed")
    return [list(cast(Sequence[Any], v)) if isinstance(v, tuple) else v for v in cast(Any, value)]


def _span(start: Any, end: Any, where: str) -> TimeSpan | None:
    if start in (None, "") and end in (None, ""):
        return None
    if end in (None, ""):
        raise DataError(f"{where} has a start but no end; give both in seconds, or neither")
    try:
        return TimeSpan(start_s=_seconds(0 if start in (None, "") else start), end_s=_seconds(end))
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(
            f"{where} has span {_shown(start)} to {_shown(end)}; write seconds or HH:MM:SS.sss"
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


def _shown(value: Any) -> str:
    """A value as messages quote it, however long it is."""
    try:
        return f"{value!r:.60}"
    except (ValueError, RecursionError):
        return "a number of thousands of digits, or lists in lists,"
