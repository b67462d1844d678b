"""Core values to JSON and back, strictly: unknown, missing and mistyped keys are errors."""

from typing import Any, TypeVar

import msgspec

from arachne.core.errors import ArachneError, DataError
from arachne.core.known_keys import unknown_key

T = TypeVar("T")


def to_json(value: Any) -> str:
    """A value, dataclass or container of them as one line of JSON."""
    return msgspec.json.encode(value).decode()


def from_json(text: str | bytes, kind: type[T], *, what: str) -> T:
    """Read one value; `what` names it in messages.

    Raises:
        DataError: The text is not JSON, or does not have the shape of `kind`.
    """
    try:
        table = msgspec.json.decode(text)
        unknown = unknown_key(kind, table)
        if unknown is not None:
            raise DataError(f"{what}: unknown key {unknown.describe()}")
        return msgspec.convert(table, kind)
    except (msgspec.MsgspecError, AssertionError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{what} cannot be read: {error}") from error
    except DataError:
        raise
    except ArachneError as error:
        raise DataError(f"{what} cannot be read: {error}") from error
