"""The clips of WebDataset shards: members `KEY.mp4` with `KEY.txt` or `KEY.json` beside them.

As WebDataset has it a key ends at the first dot of the last part of a member's name; so that names
with more dots work too, `a.b.mp4` first looks for `a.b.txt`, then for `a.txt`.
"""

import json
from collections.abc import Iterator, Sequence
from io import BufferedReader
from pathlib import PurePosixPath
from typing import Any, cast

from arachne.core.errors import DataError
from arachne.data.captions import as_caption, decoded_text
from arachne.data.clip_table import CAPTION_COLUMNS
from arachne.data.media_suffixes import has_media_name, is_hidden
from arachne.data.remote_path import DatasetPath
from arachne.data.source_path import source_path
from arachne.data.tar_index import TarIndex, tar_index
from arachne.data.uncaptioned import Uncaptioned

_MAX_CAPTION_BYTES = 2**20
_THE_REST = "the clips that could not be listed"
"""Stands where a damaged shard's further captions would be: its row is always rejected."""


def shard_clips(root: DatasetPath, shards: Sequence[str]) -> list[Uncaptioned]:
    """All media members of the shards of a folder, in order.

    A shard that cannot be read to its end has one more clip, called like the shard itself: it
    stands for what is missing, and is rejected with the reason when it is opened. A clip whose
    caption cannot be read has that as its fault.
    """
    return [clip for shard in shards for clip in _clips(source_path(root, shard), shard)]


def _clips(path: DatasetPath, shard: str) -> Iterator[Uncaptioned]:
    index = tar_index(path)
    with path.open("rb") as file:
        for name in index.members:
            if has_media_name(name) and not is_hidden(name):
                caption, fault = None, ""
                try:
                    _refuse_odd_name(shard, name)
                    caption = _caption(file, path, shard, index, name)
                except DataError as error:
                    fault = str(error)
                yield Uncaptioned(path=f"{shard}/{name}", caption=caption, fault=fault)
    if index.fault is not None:
        yield Uncaptioned(path=shard, caption=_THE_REST)


def _refuse_odd_name(shard: str, name: str) -> None:
    if any("\ud800" <= char <= "\udfff" for char in name):
        raise DataError(f"{shard} has a member {name!r} whose name is not UTF-8; rename it")


def _caption(
    file: BufferedReader, path: DatasetPath, shard: str, index: TarIndex, name: str
) -> str | None:
    for stem in _stems(name):
        for suffix in (".txt", ".json"):
            if stem + suffix not in index.members:
                continue
            where = f"{shard}/{stem}{suffix}"
            text = index.slice_of(path, stem + suffix)
            if text.num_bytes > _MAX_CAPTION_BYTES:
                raise DataError(f"{where} has {text.num_bytes:,} bytes; too long for a caption")
            file.seek(text.offset)
            content = decoded_text(file.read(text.num_bytes), where)
            return as_caption(content) if suffix == ".txt" else _json_caption(content, where)
    return None


def _stems(name: str) -> tuple[str, ...]:
    whole = PurePosixPath(name)
    stem = str(whole.with_suffix(""))
    key = str(whole.with_name(whole.name.split(".", 1)[0]))
    return (stem,) if stem == key else (stem, key)


def _json_caption(text: str, where: str) -> str | None:
    """The caption of a sample's JSON, by the names that tables have for it."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise DataError(f"{where} is not an object with a caption")
    fields = {key.strip().lower(): value for key, value in cast(dict[str, Any], found).items()}
    caption = next((fields[name] for name in CAPTION_COLUMNS if name in fields), None)
    if caption is not None and not isinstance(caption, str):
        raise DataError(f"{where} has {caption!r:.60} as its caption; it must be text")
    return None if caption is None else as_caption(caption)
