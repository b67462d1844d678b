"""Counts that a user gives on the command line, refused in one line where they cannot work."""

import os

from arachne.core.errors import ConfigError

_MOST_RANKS = 64
_RANKS_PER_CORE = 4
"""*Assumption*: more processes than this on one machine are a slip of the hand; each takes some
hundred megabytes, and they would starve each other."""


def check_count(name: str, count: int, *, most: int) -> None:
    """Refuse counts that are not 1 to `most`, from where on a verb would run for hours.

    Raises:
        ConfigError: With the option's or setting's name.
    """
    if count < 1:
        raise ConfigError(f"{name} is {count}; it must be at least 1")
    if count > most:
        raise ConfigError(f"{name} is {count:,}; it must be at most {most:,}")


def check_ranks(name: str, ranks: int) -> None:
    """Refuse more ranks than one machine can run.

    Raises:
        ConfigError: With the option's or setting's name.
    """
    cores = len(os.sched_getaffinity(0))
    check_count(name, ranks, most=max(_MOST_RANKS, _RANKS_PER_CORE * cores))
