"""Counts that a user gives on the command line, refused in one line where they cannot work."""

from arachne.core.errors import ConfigError


def check_count(name: str, count: int, *, most: int) -> None:
    """Refuse counts that are not 1 to `most`, from where on a verb would run for hours.

    Raises:
        ConfigError: With the option's or setting's name.
    """
    if count < 1:
        raise ConfigError(f"{name} is {count}; it must be at least 1")
    if count > most:
        raise ConfigError(f"{name} is {count:,}; it must be at most {most:,}")
