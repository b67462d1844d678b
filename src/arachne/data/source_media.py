"""The bytes that a dataset's path means: a file's, or those of a member of a tar.

`cats/a.mp4` is a file, `shard-000.tar/a.mp4` a member.
"""

import re
from pathlib import Path

from arachne.core.errors import DataError
from arachne.data.media_file import MediaFile, whole_file
from arachne.data.source_path import dataset_folder, source_path
from arachne.data.tar_index import tar_index

_IN_TAR = re.compile(r"(.*?\.tar)(?:/(.*))?", re.DOTALL | re.IGNORECASE)


def source_media(root: Path, path: str) -> MediaFile:
    """What a dataset's relative `path` means; nothing outside the dataset's folder is opened.

    Raises:
        DataError: The path is no file, leaves the folder, or names a member that cannot be read.
        OSError: The file went away, or may not be read.
    """
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
