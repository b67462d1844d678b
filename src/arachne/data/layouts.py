"""Find out how a dataset lists its clips, and read the list; no media file is opened.

A dataset is a folder, of which the first of these counts, or one table or shard in it.

| layout | looks like |
|---|---|
| table | `metadata.csv`, `.json`, `.jsonl`, `.parquet` or `.arrow` |
| lists | `videos.txt` and `prompts.txt`, line by line |
| shards | WebDataset's `*.tar`, a clip and its caption as members `a.mp4` and `a.txt` |
| saved dataset | what Hugging Face's `datasets` writes; see `saved_dataset` |
| table | of any other name, the folder's only one, or `NAME_1.csv` to `NAME_n.csv` |
| sidecar | media files anywhere below, `a.mp4` with its caption in `a.txt` |
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from arachne.core.clip import Clip
from arachne.core.errors import ConfigError, DataError
from arachne.core.units import count_text, names_text
from arachne.data.captions import half_character, plain_ends, read_text, written_out
from arachne.data.clip_table import is_read, names_files, table_clips
from arachne.data.dataset_hints import missing_caption_hint, no_clip_hint
from arachne.data.files_below import names_in
from arachne.data.listed_files import located, media_finder
from arachne.data.remote_path import DatasetPath
from arachne.data.saved_dataset import saved_dataset
from arachne.data.shard_clips import shard_clips
from arachne.data.sidecar_clips import has_captioned_media, sidecar_clips
from arachne.data.source_path import source_path
from arachne.data.table_rows import TABLE_SUFFIXES, column_names, read_table
from arachne.data.uncaptioned import Uncaptioned

TABLE_STEM = "metadata"
VIDEO_LIST = "videos.txt"
CAPTION_LISTS = ("prompts.txt", "captions.txt", "prompt.txt", "caption.txt")
SHARD_SUFFIX = ".tar"
_HOW_TO_LIST = (
    f"add {TABLE_STEM}.csv with columns video and caption, or media files with captions such as "
    "a.mp4 and a.txt"
)
PACKED_SUFFIXES = (".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz")
_PART = re.compile(r"(?P<name>.+)_(?P<number>[0-9]{1,6})(?P<suffix>\.[^.]+)", re.DOTALL)
"""One table of several that are one dataset: `Koala_36M_1.csv`, ..., `Koala_36M_10.csv`."""


_LOG_COLUMNS = {"key", "status"}
"""Of every table that video2dataset writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a dataset lists its clips.

    Attributes:
        name: For people: `table metadata.csv`.
        read: The clips, in the dataset's order; raises DataError.
    """

    name: str
    read: Callable[[], list[Uncaptioned]]


def detected_layout(root: DatasetPath) -> Layout:
    """The layout of the dataset in a folder, or of the one that a table or shard lists.

    Raises:
        DataError: There is no such folder or file, it cannot be read, or two tables or lists are
            possible.
    """
    if root.is_file():
        return _layout_of_file(root.parent, root.name)
    if not root.is_dir():
        raise DataError(f"there is no folder {str(root)!r}; name the folder that holds the clips")
    names = names_in(root)
    tables = [name for name in names if Path(name).suffix.lower() in TABLE_SUFFIXES]
    named = [name for name in tables if Path(name).stem == TABLE_STEM]
    shards = [name for name in names if _is_shard(root / name)]
    # Any other JSON file may be a sidecar or a tool's settings.
    others = [name for name in tables if not name.lower().endswith(".json")]
    if named:
        return _layout_of_table(root, named)
    if VIDEO_LIST in names:
        return _layout_of_lists(root, names)
    if shards:
        return _layout_of_shards(root, shards)
    saved = saved_dataset(root, names)
    if _name_no_files(root, saved.tables[:1] if saved else others) and has_captioned_media(root):
        unread = names_text(saved.tables if saved else others, most=1)
        name = f"sidecar captions (not read: {unread}, without a column for files)"
        return Layout(name=name, read=partial(sidecar_clips, root))
    if saved is not None:
        return Layout(name=saved.name, read=partial(_tables, root, saved.tables))
    if others:
        return _layout_of_table(root, others)
    _refuse_packed_shards(root, names)
    return Layout(name="sidecar captions", read=partial(sidecar_clips, root))


def read_clips(root: DatasetPath, missing_caption: str) -> tuple[Clip, ...]:
    """The clips of a dataset, in its table's order or sorted by path.

    Files and folders whose names begin with a dot are not looked at.

    Raises:
        DataError: There is no dataset, the table cannot be read, or a caption is missing and
            `missing_caption` is `error`.
        ConfigError: `missing_caption` is neither `error` nor `empty`.
    """
    if missing_caption not in ("error", "empty"):
        raise ConfigError(
            f"data.missing_caption is {missing_caption!r}; it must be 'error' or 'empty'"
        )
    found = detected_layout(root).read()
    if not found:
        raise DataError(f"{str(root)!r} holds no clip; {no_clip_hint(root) or _HOW_TO_LIST}")
    _refuse_missing(root, found, missing_caption)
    return tuple(map(_clip, found))


def _clip(found: Uncaptioned) -> Clip:
    """The clip, with a fault if it has one, or if its text cannot be meant so."""
    texts = [found.path, found.caption or "", *found.other_captions]
    halves = {half for half in map(half_character, texts) if half}
    fault = found.fault
    if halves and not fault:
        what = "path" if half_character(found.path) else "caption"
        fault = f"its {what} holds half a character, {min(halves)}; remove it"
    if any("\0" in text for text in texts[1:]) and not fault:
        fault = "its caption holds a NUL character, as UTF-16 does; save it as UTF-8"
    path, caption, *others = map(written_out, texts)
    return Clip(
        path=path,
        caption=caption,
        span=found.span,
        other_captions=tuple(others),
        fault=written_out(fault),
    )


def _is_shard(path: DatasetPath) -> bool:
    return path.suffix.lower() == SHARD_SUFFIX and path.is_file()


def _layout_of_file(root: DatasetPath, name: str) -> Layout:
    suffix = Path(name).suffix.lower()
    if suffix in TABLE_SUFFIXES:
        return _layout_of_table(root, [name])
    if suffix == SHARD_SUFFIX:
        return _layout_of_shards(root, [name])
    _refuse_packed_shards(root, [name])
    raise DataError(
        f"{str(root / name)!r} lists no clips; name a folder, a table "
        f"({', '.join(TABLE_SUFFIXES)}) or a shard ({SHARD_SUFFIX})"
    )


def _layout_of_table(root: DatasetPath, tables: list[str]) -> Layout:
    if parts := _parts(root, tables):
        name = f"{len(parts)} tables {parts[0]} to {parts[-1]}"
        return Layout(name=name, read=partial(_tables, root, parts))
    if len(tables) > 1:
        raise DataError(
            f"{str(root)!r} holds {count_text(len(tables), 'table')}: {', '.join(tables[:4])}; "
            f"name the one that lists the clips as the dataset, or call it "
            f"{TABLE_STEM}{Path(tables[0]).suffix}"
        )
    return Layout(name=f"table {tables[0]}", read=partial(_tables, root, tables))


def _parts(root: DatasetPath, tables: Sequence[str]) -> list[str]:
    """Tables that are one dataset, in the order of their numbers; none where they are not.

    They differ in their numbers alone, which count on from 0 or 1, and have the same columns.
    """
    found = [match for match in map(_PART.fullmatch, tables) if match]
    found.sort(key=lambda match: int(match["number"]))
    numbers = [int(match["number"]) for match in found]
    counts_on = any(numbers == list(range(first, first + len(tables))) for first in (0, 1))
    is_one = len({(match["name"], match["suffix"]) for match in found}) == 1
    if len(tables) < 2 or not counts_on or not is_one:
        return []
    names = [match[0] for match in found]
    columns = {_columns(root, name) for name in names}
    return names if len(columns) == 1 and None not in columns else []


def _name_no_files(root: DatasetPath, tables: Sequence[str]) -> bool:
    """Whether there are tables, and none says which files clips are in; it may list anything."""
    return bool(tables) and all(_names_no_files(name, _columns(root, name)) for name in tables)


def _names_no_files(name: str, columns: tuple[str, ...] | None) -> bool:
    """video2dataset keeps columns of its input, such as ids, in `00000.parquet` beside `00000`."""
    if columns is None:
        return False
    is_log = Path(name).stem.isdecimal() and set(columns) >= _LOG_COLUMNS
    return is_log or not names_files(columns)


def _columns(root: DatasetPath, table: str) -> tuple[str, ...] | None:
    """The names of a table's columns; None where they cannot be read, which is said later."""
    with suppress(DataError):
        return column_names(source_path(root, table), table)
    return None


def _layout_of_lists(root: DatasetPath, names: list[str]) -> Layout:
    captions = [name for name in CAPTION_LISTS if name in names]
    if len(captions) > 1:
        raise DataError(
            f"{str(root)!r} holds {' and '.join(captions)} beside {VIDEO_LIST}; keep one"
        )
    captions_name = captions[0] if captions else None
    return Layout(
        name=f"lists {VIDEO_LIST} and {captions_name or 'no captions'}",
        read=partial(_listed_clips, root, captions_name),
    )


def _layout_of_shards(root: DatasetPath, shards: list[str]) -> Layout:
    name = f"shard {shards[0]}" if len(shards) == 1 else f"{len(shards)} shards *{SHARD_SUFFIX}"
    return Layout(name=name, read=partial(shard_clips, root, shards))


def _refuse_packed_shards(root: DatasetPath, names: list[str]) -> None:
    packed = [name for name in names if name.lower().endswith(PACKED_SUFFIXES)]
    if packed:
        raise DataError(
            f"{str(root / packed[0])!r} is compressed, so that clips cannot be read in place; "
            "decompress it to a .tar"
        )


def _tables(root: DatasetPath, names: Sequence[str]) -> list[Uncaptioned]:
    find_media = media_finder(root)
    clips = [
        clip
        for name in names
        for clip in table_clips(read_table(source_path(root, name), name, is_read), find_media)
    ]
    return located(root, clips)


def _listed_clips(root: DatasetPath, captions_name: str | None) -> list[Uncaptioned]:
    paths = _lines(root, VIDEO_LIST)
    while paths and not paths[-1]:
        del paths[-1]
    captions = _lines(root, captions_name) if captions_name else [None] * len(paths)
    while len(captions) > len(paths) and not captions[-1]:
        del captions[-1]
    if len(paths) != len(captions):
        raise DataError(
            f"{VIDEO_LIST} has {count_text(len(paths), 'line')} but {captions_name} "
            f"{len(captions)}; line k of one belongs to line k of the other"
        )
    for number, path in enumerate(paths, start=1):
        if not path:
            raise DataError(f"{VIDEO_LIST} line {number} names no file")
    clips = [
        Uncaptioned(path=path.replace("\\", "/").removeprefix("./"), caption=caption)
        for path, caption in zip(paths, captions, strict=True)
    ]
    return located(root, clips)


def _lines(root: DatasetPath, name: str) -> list[str]:
    """Every line of a file, blank ones too: line k of one file belongs to line k of another."""
    lines = plain_ends(read_text(source_path(root, name), name)).split("\n")
    return [line.strip() for line in (lines if lines[-1] else lines[:-1])]


def _refuse_missing(root: DatasetPath, found: list[Uncaptioned], missing_caption: str) -> None:
    without = [clip for clip in found if not clip.caption and not clip.fault]
    if not without or missing_caption == "empty":
        return
    hint = missing_caption_hint(root, without[0].path)
    first = Clip(path=without[0].path, caption="", span=without[0].span).name
    raise DataError(
        f"clip {first!r} has no caption ({count_text(len(without), 'clip')} of {len(found)} in "
        f"all); {hint or 'add it'}, or set data.missing_caption = 'empty' (--missing-caption "
        "empty) to train without words"
    )
