"""Read a TOML file into frozen dataclasses, refusing whatever they do not name."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from arachne.core.credentials import setting_with_credential
from arachne.core.errors import ConfigError
from arachne.core.known_keys import choice_text, unknown_key

T = TypeVar("T")

_MOST_BYTES = 2**20
"""A hundred times the longest run file of ours; such a file is parsed within some seconds."""

_MISSING = "Object missing required field "
"""How msgspec begins this message."""

_ENUM_VALUE = re.compile("nvalid enum value '(.*)'")
"""What msgspec says of a word that is none of those that it may be."""

_FORMS: dict[Any, str] = {
    int: "a whole number, as 8",
    float: "a number, as 1.5 or 2e9",
    str: 'text in quotes, as "a"',
    bool: "true or false",
    tuple: "a list, as [1, 2]",
    tuple[str, ...]: 'a list, as ["a", "b"]',
}
"""How a value of each type is written."""


def load_toml(path: Path, kind: type[T], *, overrides: Sequence[str] = ()) -> T:
    """Read `path` into `kind`; each override is `section.key=value`, its value TOML or bare text.

    Raises:
        ConfigError: The file cannot be read, is not TOML, or a key is unknown, missing or mistyped;
            or a text holds a password or token, which the message does not repeat.
    """
    absent = f"there is no file {str(path)!r}; name an existing run file"
    table = read_table(path, absent=absent)
    for override in overrides:
        _apply_override(table, override)
    if setting := setting_with_credential(table):
        where = _source(setting, path.name, overrides)
        raise ConfigError(
            f"{where}: {setting!r} holds a password or token, and settings go into the "
            "run's folder; take it out, and give it to its program in the environment"
        )
    return convert(table, kind, source=path.name, overrides=overrides)


def read_table(path: Path | Traversable, *, absent: str) -> dict[str, Any]:
    """What a TOML file says; a byte order mark before it is no setting.

    Raises:
        ConfigError: The file cannot be read, or is not TOML in UTF-8; with `absent` as its message
            if there is no such file.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        text = content.decode("utf-8-sig")
    except FileNotFoundError as error:
        raise ConfigError(absent) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read {str(path)!r}: {error}; save it as UTF-8") from error
    except IsADirectoryError as error:
        raise ConfigError(f"{str(path)!r} is a folder; name a TOML file") from error
    except (OSError, ValueError) as error:  # a path with a NUL is a ValueError
        raise ConfigError(f"cannot read {str(path)!r}: {error}; name a readable file") from error
    if len(content) > _MOST_BYTES:
        raise ConfigError(
            f"cannot read {str(path)!r}: it has more than {_MOST_BYTES:,} bytes; name a file of "
            "settings"
        )
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"cannot read {str(path)!r} as TOML: {error}") from error
    except (ValueError, RecursionError) as error:  # thousands of digits, or of brackets
        raise ConfigError(
            f"cannot read {str(path)!r}: a number has too many digits, or lists are nested too "
            "deeply; write a shorter value"
        ) from error


def convert(
    table: Mapping[str, Any], kind: type[T], *, source: str, overrides: Sequence[str] = ()
) -> T:
    """Build `kind` from a parsed table, into which `overrides` were written.

    Raises:
        ConfigError: A key is unknown, missing or mistyped; the message has its dotted path.
    """
    unknown = unknown_key(kind, table)
    if unknown is not None:
        where = _source(unknown.path, source, overrides)
        raise ConfigError(f"{where}: unknown setting {unknown.describe()}")
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        what = _with_dotted_path(str(error))
        dotted = _dotted(str(error).partition(" - at ")[2])
        where = _source(dotted, source, overrides)
        if where == f"--set {dotted}":
            what = what.removeprefix(f"{dotted}: ")
        raise ConfigError(f"{where}: {what}{_fix(kind, error)}") from error


def _source(dotted: str, file: str, overrides: Sequence[str]) -> str:
    """Who wrote a setting, or made the section that it names: an override's key, or a file.

    An override's value may be a secret, so no message repeats it.
    """
    for override in reversed(overrides):
        key = override.partition("=")[0].strip()
        is_within = f"{dotted}.".startswith((f"{key}.", f"{key}["))
        if dotted and (is_within or key.startswith(f"{dotted}.")):
            return f"--set {key}"
    return file


def _fix(kind: Any, error: Exception) -> str:
    """How the setting is written that is missing or of a wrong type: `; choose a, b or c`."""
    message, _, path = str(error).replace("`", "").partition(" - at ")
    keys = [key for key in path.removeprefix("$").split(".") if key]
    is_missing = message.startswith(_MISSING)
    if is_missing:
        keys.append(message.removeprefix(_MISSING))
    lists = ""
    for depth, key in enumerate(keys, start=1):
        kind = get_type_hints(kind).get(key.partition("[")[0]) if is_dataclass(kind) else None
        if section := _listed_section(kind):
            lists = f"[[{'.'.join(keys[:depth]).partition('[')[0]}]]"
            if depth == len(keys):
                return f"; write a section for each, {lists}, with its settings below"
            kind = section
    literal = next((each for each in _options_of(kind) if get_origin(each) is Literal), None)
    forms = [_FORMS.get(each) or _FORMS.get(get_origin(each), "") for each in _options_of(kind)]
    form = " or ".join(filter(None, forms))
    if literal is not None:
        found = _ENUM_VALUE.search(message)
        choice = choice_text(found[1] if found else "", map(str, get_args(literal)))
        return f"; {choice}{f', or write {form}' if form else ''}"
    if is_dataclass(kind):
        form = f"a section, [{'.'.join(keys)}]"
    add = f"add it to {lists}," if lists else "add it,"
    return f"; {add if is_missing else 'write'} {form}" if form else ""


def _listed_section(kind: Any) -> Any:
    """The dataclass of which a setting holds a list; None where it holds something else."""
    item = get_args(kind)[0] if get_origin(kind) is tuple else None
    return item if is_dataclass(item) else None


def _options_of(kind: Any) -> tuple[Any, ...]:
    """The types of a union, or the one that is none."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _with_dotted_path(message: str) -> str:
    """`Expected `int`, got `str` - at `$.a.b`` becomes `a.b: expected int, got str`."""
    text, _, path = message.partition(" - at ")
    plain = text.replace("`", "")
    dotted = _dotted(path)
    if plain.startswith(_MISSING):
        key = plain.removeprefix(_MISSING)
        where = f"{dotted}.{key}" if dotted else key
        return f"missing setting {where!r}"
    return f"{dotted}: {plain[:1].lower()}{plain[1:]}" if dotted else plain


def _dotted(path: str) -> str:
    """`$.a.b` of msgspec, in backticks, as `a.b`."""
    return path.strip("`").removeprefix("$").removeprefix(".")


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
    except (ValueError, RecursionError):  # no TOML, or thousands of digits or of brackets
        return text
    if len(table) > 1:
        raise ConfigError(
            f"--set takes one setting, but {text!r} holds several; use --set for each"
        )
    return table["value"]
