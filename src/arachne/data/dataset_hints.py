"""What a dataset's folder holds that was probably meant, but is not read as it is."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from arachne.core.errors import DataError
from arachne.data.files_below import names_in
from arachne.data.media_suffixes import has_media_name
from arachne.data.remote_path import DatasetPath
from arachne.data.source_path import dataset_folder, source_path
from arachne.data.table_rows import TABLE_SUFFIXES

_CAPTION_SUFFIXES = (".TXT", ".caption", ".cap", ".json", ".md", ".prompt")
_OTHER_TABLES = (".xlsx", ".xls", ".ods", ".tsv", ".yaml", ".yml", ".pkl", ".feather")
_ARCHIVES = (".zip", ".7z", ".rar")
_SHARD_SUFFIX = ".tar"
_TABLE_STEM = "metadata"


def missing_caption_hint(root: DatasetPath, path: str) -> str:
    """Where the caption of a media file may be that has none; empty if there is no sign of one."""
    for suffix in _CAPTION_SUFFIXES if has_media_name(path) else ():
        name = PurePosixPath(path).with_suffix(suffix).as_posix()
        with suppress(DataError):
            source_path(root, name)
            return f"{name!r} is there, but captions beside files are read from .txt"
    return next(_unread_tables(dataset_folder(root)), "")


def no_clip_hint(root: DatasetPath) -> str:
    """Why a folder that should hold clips holds none; empty if there is no sign of any."""
    folder = dataset_folder(root)
    archives = (name for name in _names(folder) if name.lower().endswith(_ARCHIVES))
    packed = (f"{name!r} is an archive, which is not opened: unpack it" for name in archives)
    return next(_unread_tables(folder), "") or next(packed, "")


def separator_hint(columns: tuple[str, ...]) -> str:
    """Whether a table's only column looks like several that something else than commas parts."""
    parts = {"a semicolon": ";", "a tabulator": "\t", "a bar": "|"}
    found = [name for name, mark in parts.items() if len(columns) == 1 and mark in columns[0]]
    return f"{found[0]} stands between its columns, and only commas are read" if found else ""


def _unread_tables(folder: DatasetPath) -> Iterator[str]:
    """Tables and shards that list clips in a folder below, or tables that are not read."""
    for name in _names(folder):
        if Path(name).suffix.lower() in _OTHER_TABLES and not has_media_name(name):
            readable = ", ".join(TABLE_SUFFIXES)
            yield f"{name!r} is there, but only {readable} are read: save it as CSV"
        # Far away each look takes a request.
        for suffix in TABLE_SUFFIXES if isinstance(folder, Path) else ():
            if _is_file(folder / name / f"{_TABLE_STEM}{suffix}"):
                below = f"{name}/{_TABLE_STEM}{suffix}"
                yield f"{below!r} lists clips: name {str(folder / name)!r} as the dataset"
        for shard in _shards(folder / name):
            yield f"{name + '/' + shard!r} is a shard: name {str(folder / name)!r} as the dataset"


def _is_file(path: DatasetPath) -> bool:
    with suppress(OSError):  # in a folder that this user may not look into
        return path.is_file()
    return False


def _shards(folder: DatasetPath) -> list[str]:
    """Those of a folder that can be looked into; a link may lead out of the dataset."""
    if not isinstance(folder, Path) or folder.is_symlink():
        return []
    with suppress(OSError, DataError):
        return [name for name in _names(folder) if name.lower().endswith(_SHARD_SUFFIX)]
    return []


def _names(folder: DatasetPath) -> list[str]:
    if not folder.is_dir():
        return []
    return names_in(folder)
