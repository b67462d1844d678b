"""Checks that the sections of a run file have in common; each raises ConfigError."""

from arachne.core.errors import ConfigError
from arachne.core.local_path import address_fault
from arachne.core.units import number_text

_LONGEST = 40
"""Characters of a number in a message; a slip can make thousands."""


def at_least(section: str, lowest: float, *, most: float = 1e9, **values: float) -> None:
    """Refuse numbers of `[section]` that are not between `lowest` and `most`, by their names."""
    for name, value in values.items():
        if value > most:
            found, highest = (_written(each, value) for each in (value, most))
            raise ConfigError(f"{section}.{name} is {found}; it must be at most {highest}")
        if not value >= lowest:
            raise ConfigError(f"{section}.{name} is {value}; it must be at least {lowest}")


def _written(number: float, like: float) -> str:
    """A number as a message writes it: in groups of three digits where `like` is whole."""
    if isinstance(like, float):
        return number_text(number)
    text = f"{int(number):,}"
    return text if len(text) <= _LONGEST else f"a number of {len(text.replace(',', ''))} digits"


def folder(section: str, **paths: str) -> None:
    """Refuse paths that cannot name a folder."""
    for name, path in paths.items():
        if not path.strip() or "\0" in path:
            raise ConfigError(f"{section}.{name} is {path!r}; name a folder, '.' for this one")


def local_folder(section: str, **paths: str) -> None:
    """Refuse paths that cannot name a folder which is written to."""
    folder(section, **paths)
    for name, path in paths.items():
        if fault := address_fault(path):
            raise ConfigError(f"{section}.{name} is {fault}")


def share(section: str, **values: float) -> None:
    """Refuse numbers that are not between 0 and 1."""
    for name, value in values.items():
        if not 0.0 <= value <= 1.0:
            raise ConfigError(f"{section}.{name} is {value}; it must be between 0 and 1")
