"""The bytes that a dataset's path means: those of a file, a member of a tar, or a table's cell.

`cats/a.mp4` is a file, `shard-000.tar/a.mp4` a member, `train.parquet/17/video` a cell: what row
17, counted from 0, holds in the column `video`.
"""

import re
from contextlib import suppress

from arachne.core.errors import DataError
from arachne.data.arrow_cells import arrow_cell
from arachne.data.media_file import MediaFile, whole_file
from arachne.data.parquet_cells import parquet_cell
from arachne.data.remote_path import DatasetPath
from arachne.data.source_path import dataset_folder, source_path
from arachne.data.tar_index import tar_index

_IN_TAR = re.compile(r"(.*?\.tar)(?:/(.*))?", re.DOTALL | re.IGNORECASE)

_IN_TABLE = re.compile(
    r"(?P<table>.*?\.(?P<kind>parquet|arrow))/(?P<row>[0-9]{1,12})/(?P<column>.+)",
    re.DOTALL | re.IGNORECASE,
)


def source_media(root: DatasetPath, path: str) -> MediaFile:
    """What a dataset's relative `path` means; nothing outside the dataset's folder is opened.

    Raises:
        DataError: The path is no file, leaves the folder, or names a member that cannot be read.
        OSError: The file went away, or may not be read.
    """
    cell = _IN_TABLE.fullmatch(path)
    if cell is not None and not (dataset_folder(root) / cell["table"]).is_dir():
        return _cell(source_path(root, cell["table"]), cell)
    match = _IN_TAR.fullmatch(path)
    if match is None or (dataset_folder(root) / match[1]).is_dir():
        return whole_file(source_path(root, path))
    tar = source_path(root, match[1])
    index = tar_index(tar)
    if match[2] is None:
        raise DataError(
            f"the shard cannot be read to its end: {index.fault}"
            if index.fault
            else "it is a shard, not a clip; name a member, such as x.tar/a.mp4"
        )
    return index.slice_of(tar, match[2])


def source_file(root: DatasetPath, path: str) -> DatasetPath:
    """The file in which a dataset's relative `path` lies: itself, a tar, or a table.

    Raises:
        DataError: There is no such file in the dataset's folder.
    """
    for pattern, part in ((_IN_TABLE, "table"), (_IN_TAR, 1)):
        match = pattern.fullmatch(path)
        if match is not None and not (dataset_folder(root) / match[part]).is_dir():
            return source_path(root, match[part])
    return source_path(root, path)


def has_source(root: DatasetPath, path: str) -> bool:
    """Whether there is such a file, which may be read."""
    with suppress(DataError, OSError):
        source_file(root, path)
        return True
    return False


def _cell(table: DatasetPath, cell: re.Match[str]) -> MediaFile:
    row, column = int(cell["row"]), cell["column"]
    if cell["kind"].lower() == "arrow":
        return arrow_cell(table, row, column)
    found, num_bytes = parquet_cell(table, row, column)
    return MediaFile(path=table, offset=0, num_bytes=num_bytes, cell=found)
