"""Read a TOML file into frozen dataclasses, refusing whatever they do not name."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec

from arachne.core.errors import ConfigError
from arachne.core.known_keys import unknown_key

T = TypeVar("T")

_MISSING = "Object missing required field "
"""How msgspec begins this message."""


def load_toml(path: Path, kind: type[T], *, overrides: Sequence[str] = ()) -> T:
    """Read `path` into `kind`; each override is `section.key=value`, its value TOML or bare text.

    Raises:
        ConfigError: The file cannot be read, is not TOML, or a key is unknown, missing or mistyped.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # a BOM is no setting
    except FileNotFoundError as error:
        raise ConfigError(f"there is no file {str(path)!r}; name an existing run file") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read {str(path)!r}: {error}") from error
    for override in overrides:
        _apply_override(table, override)
    return convert(table, kind, source=path.name)


def convert(table: Mapping[str, Any], kind: type[T], *, source: str) -> T:
    """Build `kind` from a parsed table.

    Raises:
        ConfigError: A key is unknown, missing or mistyped; the message has its dotted path.
    """
    unknown = unknown_key(kind, table)
    if unknown is not None:
        raise ConfigError(f"{source}: unknown setting {unknown.describe()}")
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{source}: {_with_dotted_path(str(error))}{_choices(kind, str(error))}"
        ) from error


def _choices(kind: Any, message: str) -> str:
    """`; choose a, b or c` where a setting has a fixed set of values."""
    path = message.partition(" - at ")[2].strip("`").removeprefix("$").removeprefix(".")
    for key in path.split(".") if path else ():
        kind = get_type_hints(kind).get(key) if is_dataclass(kind) else None
    if get_origin(kind) is not Literal:
        return ""
    *others, last = [repr(value) for value in get_args(kind)]
    return f"; choose {', '.join(others)} or {last}"


def _with_dotted_path(message: str) -> str:
    """`Expected `int`, got `str` - at `$.a.b`` becomes `a.b: expected int, got str`."""
    text, _, path = message.partition(" - at ")
    plain = text.replace("`", "")
    dotted = path.strip("`").removeprefix("$").removeprefix(".")
    if plain.startswith(_MISSING):
        key = plain.removeprefix(_MISSING)
        where = f"{dotted}.{key}" if dotted else key
        return f"missing setting {where!r}"
    return f"{dotted}: {plain[:1].lower()}{plain[1:]}" if dotted else plain


def _apply_override(table: dict[str, Any], override: str) -> None:
    dotted, equals, text = override.partition("=")
    if not equals or not dotted.strip():
        raise ConfigError(f"--set {override!r} is not SECTION.KEY=VALUE")
    *sections, key = dotted.strip().split(".")
    for section in sections:
        inner: object = table.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {override!r}: {section!r} is a setting, not a section")
        table = cast(dict[str, Any], inner)
    table[key] = _override_value(text)


def _override_value(text: str) -> Any:
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    if len(table) > 1:
        raise ConfigError(
            f"--set takes one setting, but {text!r} holds several; use --set for each"
        )
    return table["value"]
