"""Read which clips a dataset holds: a folder with `metadata.csv`, or with sidecar captions."""

import os
from pathlib import Path
from typing import Literal

from arachne.core.clip import Clip
from arachne.core.errors import ConfigError, DataError
from arachne.core.units import count_text
from arachne.data.captions import as_caption, read_text
from arachne.data.metadata_table import read_metadata_table
from arachne.data.source_path import source_path
from arachne.data.uncaptioned import Uncaptioned

MissingCaption = Literal["error", "empty"]

METADATA_NAME = "metadata.csv"
MEDIA_SUFFIXES = frozenset(
    {".mp4", ".mov", ".m4v", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".mts", ".m2ts"}
    | {".ogv", ".flv", ".wmv", ".gif"}
    | {".jpg", ".jpeg", ".png", ".webp", ".avif", ".bmp", ".tif", ".tiff"}
)
"""What counts as media where no table lists the files."""


def read_clips(root: Path, missing_caption: str) -> tuple[Clip, ...]:
    """The clips of a dataset, in the table's order or sorted by path; no media file is opened.

    With `metadata.csv`, its rows; else every media file below `root`, `a.mp4` with its caption in
    `a.txt`. Files and folders whose names begin with a dot are not looked at.

    Raises:
        DataError: There is no dataset, the table cannot be read, or a caption is missing and
            `missing_caption` is `error`.
        ConfigError: `missing_caption` is neither `error` nor `empty`.
    """
    if missing_caption not in ("error", "empty"):
        raise ConfigError(
            f"data.missing_caption is {missing_caption!r}; it must be 'error' or 'empty'"
        )
    if not root.is_dir():
        raise DataError(f"there is no folder {str(root)!r}; name the folder that holds the clips")
    if os.path.lexists(root / METADATA_NAME):
        table = source_path(root, METADATA_NAME)
        found = read_metadata_table(read_text(table, METADATA_NAME), METADATA_NAME)
    else:
        found = _sidecar_clips(root)
    if not found:
        raise DataError(
            f"{str(root)!r} holds no clip; add {METADATA_NAME} with columns video and caption, "
            "or media files with captions such as a.mp4 and a.txt"
        )
    _refuse_missing(found, missing_caption)
    return tuple(Clip(path=c.path, caption=c.caption or "", span=c.span) for c in found)


def _refuse_missing(found: list[Uncaptioned], missing_caption: str) -> None:
    without = [clip for clip in found if not clip.caption]
    if not without or missing_caption == "empty":
        return
    first = Clip(path=without[0].path, caption="", span=without[0].span).name
    raise DataError(
        f"clip {first!r} has no caption ({count_text(len(without), 'clip')} of {len(found)} in "
        "all); add it, or set data.missing_caption = 'empty' (--missing-caption empty) to train "
        "without words"
    )


def _sidecar_clips(root: Path) -> list[Uncaptioned]:
    paths: list[str] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.startswith(".") or Path(name).suffix.lower() not in MEDIA_SUFFIXES:
                continue
            paths.append((Path(folder) / name).relative_to(root).as_posix())
    for path in paths:
        if not path.isprintable() and any("\ud800" <= char <= "\udfff" for char in path):
            raise DataError(f"file name {path!r} is not UTF-8; rename the file")
    return [Uncaptioned(path=p, caption=_sidecar_caption(root, p)) for p in sorted(paths)]


def _sidecar_caption(root: Path, path: str) -> str | None:
    name = Path(path).with_suffix(".txt").as_posix()
    if not os.path.lexists(root / name):
        return None
    return as_caption(read_text(source_path(root, name), name))
