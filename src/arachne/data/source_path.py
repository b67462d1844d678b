"""The one gate between paths that a dataset names and files that are opened."""

import re
from pathlib import Path

from arachne.core.errors import DataError

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def dataset_folder(root: Path) -> Path:
    """The folder that paths are relative to: the dataset's, or that of the file that lists it."""
    return root.parent if root.is_file() else root


def source_path(root: Path, path: str) -> Path:
    """The file that a dataset's relative `path` means, with symbolic links resolved.

    Decoders never see this path, only an open file: they would follow `concat:` and `http:`.

    Raises:
        DataError: The path is absolute, an address, leaves the root, or is no regular file.
    """
    if path.startswith(("/", "\\")):
        raise DataError(f"path {path!r} is absolute; name files relative to the dataset's folder")
    if ".." in re.split(r"[/\\]", path):
        raise DataError(f"path {path!r} holds '..'; name files inside the dataset's folder")
    try:
        real_root = dataset_folder(root).resolve()
        real = (real_root / path).resolve()
        is_file = real.is_file()
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(f"path {path!r} cannot be used: {error}") from error
    if not real.is_relative_to(real_root):
        raise DataError(f"path {path!r} is a link that leaves the dataset's folder")
    if not is_file:
        if _ADDRESS.match(path):
            raise DataError(f"path {path!r} is an address; name a file in the dataset's folder")
        raise DataError(f"path {path!r} is not a file in the dataset's folder")
    return real
