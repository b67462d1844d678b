"""Which tables of a folder are one dataset: what Hugging Face's `datasets` saves, and its exports.

| saved by | looks like |
|---|---|
| `save_to_disk` | `state.json`, which names the folder's `*.arrow` files in order |
| ... of several splits | `dataset_dict.json`, and a folder like that for each split |
| `push_to_hub`, `to_parquet` in shards | `train-00000-of-00002.parquet`, ... here or in `data/` |

Of several splits the one called `train` is read.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from arachne.core.errors import DataError
from arachne.core.units import count_text
from arachne.data.captions import read_text
from arachne.data.remote_path import DatasetPath
from arachne.data.source_path import source_path

_STATE = "state.json"
_SPLITS = "dataset_dict.json"
_SHARD_FOLDER = "data"
_TRAIN = "train"
_SHARD = re.compile(
    r"(?P<split>.*?)-?(?P<number>[0-9]{4,6})(?:-of-(?P<count>[0-9]{4,6}))?(?:-[0-9a-f]{8,40})?"
    r"\.(?:parquet|arrow)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedDataset:
    """Tables that are read one after the other.

    Attributes:
        name: For people: `saved dataset of 2 Arrow files`.
        tables: Paths relative to the dataset's folder.
    """

    name: str
    tables: tuple[str, ...]


def saved_dataset(root: DatasetPath, names: Sequence[str]) -> SavedDataset | None:
    """What a folder with these names in it holds; None if it is no such dataset.

    Raises:
        DataError: It is one, and incomplete, or has several splits and none called `train`.
    """
    if _SPLITS in names:
        splits = _json_field(root, _SPLITS, "splits")
        split = _chosen(root, [str(split) for split in splits])
        return _saved(root, f"{split}/", f"saved dataset, split {_of(split, splits)}, ")
    if _STATE in names and any(name.endswith(".arrow") for name in names):
        return _saved(root, "", "saved dataset, ")
    return _sharded(root, "", names) or _sharded_below(root, names)


def _saved(root: DatasetPath, folder: str, lead: str) -> SavedDataset:
    files = _json_field(root, f"{folder}{_STATE}", "_data_files")
    tables: list[str] = []
    for file in files:
        found = cast(dict[str, Any], file).get("filename") if isinstance(file, dict) else None
        if not isinstance(found, str):
            raise DataError(f"{folder}{_STATE} does not name its files; save the dataset again")
        tables.append(f"{folder}{found}")
    return SavedDataset(name=f"{lead}{count_text(len(tables), 'Arrow file')}", tables=tuple(tables))


def _json_field(root: DatasetPath, name: str, field: str) -> list[Any]:
    """A list in a small JSON file."""
    try:
        found: Any = json.loads(read_text(source_path(root, name), name))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name} is not JSON: {error}") from error
    values = cast(dict[str, Any], found).get(field) if isinstance(found, dict) else None
    if not isinstance(values, list):
        raise DataError(f"{name} has no list {field!r}; save the dataset again")
    return cast(list[Any], values)


def _sharded_below(root: DatasetPath, names: Sequence[str]) -> SavedDataset | None:
    folder = root / _SHARD_FOLDER
    if _SHARD_FOLDER not in names or not folder.is_dir():
        return None
    below = sorted(entry.name for entry in folder.iterdir())
    return _sharded(root, f"{_SHARD_FOLDER}/", below)


def _sharded(root: DatasetPath, folder: str, names: Sequence[str]) -> SavedDataset | None:
    """The shards of one split; None if there are fewer than two tables, or one that is no shard."""
    shards: dict[str, list[re.Match[str]]] = {}
    for name in names:
        if name.endswith((".parquet", ".arrow")):
            match = _SHARD.fullmatch(name)
            if match is None:
                return None
            shards.setdefault(match["split"], []).append(match)
    if not shards:
        return None
    split = _chosen(root, list(shards))
    found = sorted(shards[split], key=lambda match: match[0])
    promised = {int(match["count"]) for match in found if match["count"]}
    most = max(promised, default=len(found))
    missing = f" (of {most}; the others are not here)" if most > len(found) else ""
    pattern = f"{folder}{split}-*" if split else f"{folder}*"
    others = f", split {_of(split, list(shards))}" if len(shards) > 1 else ""
    return SavedDataset(
        name=f"{count_text(len(found), 'sharded table')}{missing} {pattern}{others}",
        tables=tuple(f"{folder}{match[0]}" for match in found),
    )


def _chosen(root: DatasetPath, splits: Sequence[str]) -> str:
    if _TRAIN in splits:
        return _TRAIN
    if len(splits) == 1:
        return splits[0]
    raise DataError(
        f"{str(root)!r} holds {count_text(len(splits), 'split')}: {', '.join(splits[:6])}; none is "
        f"called {_TRAIN}: name one split's folder or table as the dataset"
    )


def _of(split: str, splits: Sequence[Any]) -> str:
    others = [str(other) for other in splits if other != split]
    return f"{split} (not read: {', '.join(others)})" if others else split
