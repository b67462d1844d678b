"""Find the first key of a table that a dataclass does not name."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from types import UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

_ELSEWHERE = {
    "learning_rate": "lr",
    "lr_scheduler": "schedule",
    "lr_warmup_steps": "warmup_steps",
    "batch_size": "clips",
    "train_batch_size": "clips",
    "max_train_steps": "steps",
    "max_steps": "steps",
    "output_dir": "dir",
    "r": "rank",
    "lora_rank": "rank",
    "lora_alpha": "alpha",
    "target_modules": "targets",
    "mixed_precision": "dtype",
    "save_every": "every",
    "checkpointing_steps": "every",
    "checkpoints_total_limit": "keep",
    "validation_steps": "every",
}
"""What settings are called in other trainers, and here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownKey:
    """A key that no field has, with its dotted path and the names that would be known there."""

    path: str
    known: tuple[str, ...]

    def describe(self) -> str:
        """The path, and the nearest known name or all of them."""
        prefix, _, key = self.path.rpartition(".")
        close = get_close_matches(key, self.known, n=1)
        if (ours := _ELSEWHERE.get(key)) in self.known:
            close = [ours]
        if close:
            nearest = f"{prefix}.{close[0]}" if prefix else close[0]
            return f"{self.path!r}; did you mean {nearest!r}?"
        return f"{self.path!r}; known here: {', '.join(self.known)}"


def choice_text(value: str, known: Iterable[str]) -> str:
    """What to write instead of a name that is not known: the nearest one, and all of them."""
    names = tuple(known)
    close = get_close_matches(value, names, n=1)
    nearest = f"did you mean {close[0]!r}? " if close else ""
    *others, last = [repr(name) for name in names]
    listed = f"{', '.join(others)} or {last}" if others else last
    return f"{nearest}choose {listed}"


def unknown_key(kind: Any, table: object) -> UnknownKey | None:
    """The first unknown key of `table`, searched through nested dataclasses; None if all fit."""
    return next(_unknown_keys(kind, table, ""), None)


@cache
def _field_kinds(kind: Any) -> dict[str, Any]:
    """The type of each field, by name; kept, as a trace asks for it a hundred thousand times."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _unknown_keys(kind: Any, table: object, path: str) -> Iterator[UnknownKey]:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        for option in arguments:
            if is_dataclass(option) or get_origin(option) is not None:
                yield from _unknown_keys(option, table, path)
    elif origin in (tuple, list) and isinstance(table, list):
        for index, item in enumerate(cast(list[object], table)):
            yield from _unknown_keys(arguments[0], item, f"{path}[{index}]")
    elif is_dataclass(kind) and isinstance(table, Mapping):
        hints = _field_kinds(kind)
        known = tuple(hints)
        for key, value in cast(Mapping[str, object], table).items():
            where = f"{path}.{key}" if path else str(key)
            if key not in known:
                yield UnknownKey(path=where, known=known)
            else:
                yield from _unknown_keys(hints[key], value, where)
