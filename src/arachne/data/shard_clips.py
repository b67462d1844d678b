"""The clips of WebDataset shards: members `KEY.mp4` with `KEY.txt` or `KEY.json` beside them.

As WebDataset has it a key ends at the first dot of the last part of a member's name; so that names
with more dots work too, `a.b.mp4` first looks for `a.b.txt`, then for `a.txt`. The first of these
that says anything counts.
"""

import json
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from io import BufferedReader
from pathlib import PurePosixPath
from typing import Any, cast

from arachne.core.errors import DataError
from arachne.data.captions import as_caption, captions_in_turn, decoded_text
from arachne.data.clip_table import captions_of_fields
from arachne.data.media_suffixes import has_media_name, is_hidden
from arachne.data.remote_path import DatasetPath
from arachne.data.source_path import source_path
from arachne.data.tar_index import TarIndex, tar_index
from arachne.data.uncaptioned import Uncaptioned

_MAX_CAPTION_BYTES = 2**20
_THE_REST = "the clips that could not be listed"
"""Stands where a damaged shard's further captions would be: its row is always rejected."""

_EMPTY = "the shard is empty: it has no member; write it again, or remove it"


def shard_clips(root: DatasetPath, shards: Sequence[str]) -> list[Uncaptioned]:
    """All media members of the shards of a folder, in order.

    A shard that cannot be read to its end has one more clip, called like the shard itself: it
    stands for what is missing, and is rejected with the reason when it is opened; so has an empty
    one. A clip whose caption cannot be read has that as its fault.
    """
    return [clip for shard in shards for clip in _clips(source_path(root, shard), shard)]


def _clips(path: DatasetPath, shard: str) -> Iterator[Uncaptioned]:
    index = tar_index(path)
    media = [name for name in index.members if has_media_name(name) and not is_hidden(name)]
    stems = frozenset(map(_stem, media))
    may_be_lost = index.fault is not None and any(map(_has_text_name, index.members))
    with path.open("rb") as file:
        texts = _Texts(file, path, shard, index)
        for name in media:
            captions: tuple[str, ...] = ()
            fault = ""
            try:
                _refuse_odd_name(shard, name)
                captions = texts.captions(name, stems)
            except DataError as error:
                fault = str(error)
            if may_be_lost and not captions and not fault:
                fault = f"{shard} is damaged, and no caption is in what can be read of it"
            yield Uncaptioned(
                path=f"{shard}/{name}",
                caption=captions[0] if captions else None,
                other_captions=captions[1:],
                fault=fault,
            )
    if index.fault is not None:
        yield Uncaptioned(path=shard, caption=_THE_REST)
    elif not index.members:
        yield Uncaptioned(path=shard, caption=None, fault=_EMPTY)


def _has_text_name(name: str) -> bool:
    return name.endswith((".txt", ".json"))


def _refuse_odd_name(shard: str, name: str) -> None:
    if any("\ud800" <= char <= "\udfff" for char in name):
        raise DataError(f"{shard} has a member {name!r} whose name is not UTF-8; rename it")


@dataclass(frozen=True, slots=True)
class _Texts:
    """The members of an open shard that hold captions."""

    file: BufferedReader
    path: DatasetPath
    shard: str
    index: TarIndex

    def captions(self, name: str, stems: Set[str]) -> tuple[str, ...]:
        """Those of a media member; `stems` are of all of them."""
        for stem in _stems(name):
            captions = captions_in_turn(stem, stems, self._text)
            captions = captions or self._in_json(f"{stem}.json")
            if captions:
                return captions
        return ()

    def _text(self, name: str) -> str | None:
        content = self._content(name)
        return None if content is None else as_caption(content)

    def _in_json(self, name: str) -> tuple[str, ...]:
        content = self._content(name)
        return () if content is None else _json_captions(content, f"{self.shard}/{name}")

    def _content(self, name: str) -> str | None:
        if name not in self.index.members:
            return None
        where = f"{self.shard}/{name}"
        text = self.index.slice_of(self.path, name)
        if text.num_bytes > _MAX_CAPTION_BYTES:
            raise DataError(f"{where} has {text.num_bytes:,} bytes; too long for a caption")
        self.file.seek(text.offset)
        return decoded_text(self.file.read(text.num_bytes), where)


def _stem(name: str) -> str:
    return str(PurePosixPath(name).with_suffix(""))


def _stems(name: str) -> tuple[str, ...]:
    """Of what may hold a member's captions: its own, and its key."""
    whole = PurePosixPath(name)
    key = str(whole.with_name(whole.name.split(".", 1)[0]))
    return (_stem(name),) if _stem(name) == key else (_stem(name), key)


def _json_captions(text: str, where: str) -> tuple[str, ...]:
    """The captions of a sample's JSON, by the names that tables have for them."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise DataError(f"{where} is not an object with a caption")
    fields = {key.strip().lower(): value for key, value in cast(dict[str, Any], found).items()}
    return captions_of_fields(fields, where)
