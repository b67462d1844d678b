"""The one gate between paths that a dataset names and files that are opened."""

import re
from functools import lru_cache
from urllib.parse import unquote

from arachne.core.errors import DataError
from arachne.data.remote_path import DatasetPath, RemotePath

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def dataset_folder(root: DatasetPath) -> DatasetPath:
    """The folder that paths are relative to: the dataset's, or that of the file that lists it."""
    if isinstance(root, RemotePath):
        return _remote_folder(root)
    return root.parent if root.is_file() else root


@lru_cache(maxsize=8)
def _remote_folder(root: RemotePath) -> RemotePath:
    return root.parent if root.is_file() else root


def source_path(root: DatasetPath, path: str) -> DatasetPath:
    """The file that a dataset's relative `path` means, with symbolic links resolved.

    Decoders never see this path, only an open file: they would follow `concat:` and `http:`.
    Where the dataset is at an address, `path` is a part of it, whatever it looks like.

    Raises:
        DataError: The path is absolute, an address, leaves the root, or is no regular file.
    """
    if path.startswith(("/", "\\")):
        raise DataError(f"path {path!r} is absolute; name files relative to the dataset's folder")
    # Servers may read %2e%2e as '..'.
    if any(".." in re.split(r"[/\\]", text) for text in (path, unquote(path))):
        raise DataError(f"path {path!r} holds '..'; name files inside the dataset's folder")
    if isinstance(root, RemotePath):
        found = dataset_folder(root) / path
        if not found.is_file():
            raise DataError(_is_no_file(path))
        return found
    try:
        real_root = (root.parent if root.is_file() else root).resolve()
        real = (real_root / path).resolve()
        is_file = real.is_file()
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(f"path {path!r} cannot be used: {error}") from error
    if not real.is_relative_to(real_root):
        raise DataError(f"path {path!r} is a link that leaves the dataset's folder")
    if not is_file:
        raise DataError(_is_no_file(path))
    return real


def _is_no_file(path: str) -> str:
    if _ADDRESS.match(path):
        return f"path {path!r} is an address; name a file in the dataset's folder"
    return f"path {path!r} is not a file in the dataset's folder"
