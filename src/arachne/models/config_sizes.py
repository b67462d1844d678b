"""Sizes of a model as its config.json says them; without torch."""

from typing import Any, cast

from arachne.core.errors import ConfigError

_MOST = 10**6
"""No size of a model is larger."""


def config_size(value: Any, name: str, *, what: str) -> int:
    """The size that config.json says under a name; of a square, transformers takes both sides too.

    Raises:
        ConfigError: It is none; `what` begins the line.
    """
    if isinstance(value, list) and len(set(map(str, cast(list[Any], value)))) == 1:
        value = value[0]
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST:
        raise ConfigError(
            f"{what} has {name} = {value!r}; needed is a whole number from 1 to {_MOST:,}"
        )
    return value
