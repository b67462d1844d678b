"""What a dataset's folder holds, by name; nothing is opened, and no link to a folder followed."""

import errno
import os
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from arachne.core.errors import DataError
from arachne.data.captions import half_character
from arachne.data.media_suffixes import has_media_name, is_hidden
from arachne.data.remote_path import DatasetPath, RemotePath

_TEXT_SUFFIX = ".txt"
_FOLDER_OF_THE_SYSTEM = "lost+found"
"""Of file systems such as ext4: only the administrator may look into it, and no clip is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesBelow:
    """What lies below a folder, without what is hidden; paths are relative to it.

    Attributes:
        files: All files, and links to files.
        links: Symbolic links that are not followed: to folders, or to nothing that is there.
    """

    files: Sequence[str]
    links: Sequence[str]


def files_below(root: DatasetPath) -> FilesBelow:
    """All files of a folder and of the folders below it.

    Raises:
        DataError: A folder cannot be read: what it holds would be lost in silence.
    """
    if isinstance(root, RemotePath):
        files = [path for path in root.files_below() if not is_hidden(path)]
        return FilesBelow(files=files, links=())
    files: list[str] = []
    links: list[str] = []
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(root / folder) as entries:
                for entry in entries:
                    path = f"{folder}{entry.name}"
                    if entry.name.startswith(".") or path == _FOLDER_OF_THE_SYSTEM:
                        continue
                    if _is_unfollowed(entry):
                        links.append(path)
                    elif _is_folder(entry):
                        folders.append(f"{path}/")
                    else:
                        files.append(path)
        except OSError as error:
            raise _unreadable(root / folder, error) from error
    return FilesBelow(files=files, links=links)


def names_in(folder: DatasetPath) -> list[str]:
    """The names of what a folder itself holds, sorted, without those that begin with a dot.

    Raises:
        DataError: The folder cannot be read.
    """
    try:
        return sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise _unreadable(folder, error) from error


def same_letters(path: str) -> str:
    """A path, the same for all ways to spell its letters: macOS keeps `é` as an `e` and an accent.

    Source: Unicode Standard Annex 15, form C.
    """
    return path if path.isascii() else unicodedata.normalize("NFC", path)


def media_of(paths: Sequence[str]) -> list[str]:
    """Those that are called like media, sorted.

    Raises:
        DataError: One of them has a name that is not UTF-8.
    """
    media = sorted(path for path in paths if has_media_name(path))
    for path in media:
        if half_character(path) is not None:
            raise DataError(f"file name {path!r} is not UTF-8; rename the file")
    return media


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads in circles, or where this user may not look
        return False


def _is_unfollowed(entry: "os.DirEntry[str]") -> bool:
    """Whether it is a link to a folder, or to nothing; a clip or text that is one is named later,
    when it is opened."""
    if not entry.is_symlink():
        return False
    if _is_folder(entry):
        return True
    is_named = has_media_name(entry.name) or PurePosixPath(entry.name).suffix == _TEXT_SUFFIX
    return not is_named and not os.path.exists(entry.path)


def _unreadable(folder: DatasetPath, error: OSError) -> DataError:
    is_forbidden = error.errno in (errno.EACCES, errno.EPERM)
    fix = "let this user read it" if is_forbidden else "look at its disk"
    return DataError(f"folder {str(folder)!r} cannot be read: {error.strerror or error}; {fix}")
