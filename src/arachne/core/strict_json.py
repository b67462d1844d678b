"""Core values to JSON and back, strictly: unknown, missing, doubled or mistyped keys are errors."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from arachne.core.errors import ArachneError, DataError
from arachne.core.known_keys import unknown_key

T = TypeVar("T")


def to_json(value: Any) -> str:
    """A value, dataclass or container of them as one line of JSON.

    Raises:
        DataError: A text holds half a character, which UTF-8 has no bytes for.
    """
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{error.object!r:.80} holds half a character, which JSON in UTF-8 cannot; remove it"
        ) from error


def from_json(
    text: str | bytes, kind: type[T], *, what: str, written: Callable[[T], str] = to_json
) -> T:
    """Read one value; `what` names it in messages.

    A text that `written` wrote, as it does still, is read some twenty times as fast as another: all
    its keys come back, so that none is unknown.

    Raises:
        DataError: The text is not JSON, or does not have the shape of `kind`.
    """
    value = _as_written(text, kind, written)
    if value is not None:
        return value
    try:
        table = msgspec.json.decode(text)
        json.loads(text, object_pairs_hook=_without_doubled_keys)
        unknown = unknown_key(kind, table)
        if unknown is not None:
            raise DataError(f"{what}: unknown key {unknown.describe()}")
        return msgspec.convert(table, kind)
    except AssertionError as error:
        raise DataError(f"{what} cannot be read: impossible value {error}") from error
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise DataError(f"{what} cannot be read: {error}") from error
    except DataError:
        raise
    except ArachneError as error:
        raise DataError(f"{what} cannot be read: {error}") from error


def _without_doubled_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A table, if none of its keys is there twice: readers would differ on which one counts."""
    table = dict(pairs)
    if len(table) < len(pairs):
        doubled, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise _DoubledKeyError(f"key {doubled!r} is there twice; leave one out")
    return table


class _DoubledKeyError(ArachneError):
    """A key is there twice."""


def _as_written(text: str | bytes, kind: type[T], written: Callable[[T], str]) -> T | None:
    """The value, if writing it gives the text back; None also for what cannot be read."""
    try:
        value = msgspec.json.decode(text, type=kind)
        is_same = written(value) == (text if isinstance(text, str) else text.decode())
        return value if is_same else None
    except (msgspec.MsgspecError, AssertionError, UnicodeError, RecursionError, ArachneError):
        return None  # the careful way says why
