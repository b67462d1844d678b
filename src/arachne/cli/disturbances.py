"""`--disturb NAME=VALUE`: steps on hardware that is not as the cost model says; no torch."""

import argparse
import re
from collections.abc import Sequence
from dataclasses import fields
from math import inf, isfinite

from arachne.core.errors import ConfigError
from arachne.core.known_keys import UnknownKey
from arachne.simulator.perturbation import Perturbation

_SLOW = "slow"
_SEED = "seed"
_NUMBERS = tuple(field.name for field in fields(Perturbation) if field.name != "slow_ranks")
_NAMES = (_SLOW, *_NUMBERS)


def add_disturbances(parser: argparse.ArgumentParser) -> None:
    """Register the option."""
    parser.add_argument(
        "--disturb",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="simulate hardware that plans know nothing of: slow=RANK:FACTOR, "
        f"{', '.join(f'{name}=…' for name in _NUMBERS)}; may be given several times",
    )


def perturbation_of(settings: Sequence[str], num_gpus: int) -> Perturbation:
    """What the options ask for.

    Raises:
        ConfigError: A name is not known or given twice, a value is no number, there is no such
            rank, or all of it together disturbs nothing.
    """
    numbers: dict[str, float | int] = {}
    slow_ranks: dict[int, float] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if name not in _NAMES:
            unknown = UnknownKey(path=name, known=_NAMES)
            raise ConfigError(f"--disturb has the unknown name {unknown.describe()}")
        if not equals:
            raise ConfigError(f"--disturb {setting!r} has no value; write {name}=VALUE")
        if name == _SLOW:
            rank, _, factor = value.partition(":")
            if rank not in map(str, range(num_gpus)):
                raise ConfigError(
                    f"--disturb {setting!r} names no rank; write slow=RANK:FACTOR with a rank of "
                    f"0 to {num_gpus - 1}, such as slow=0:1.5"
                )
            _refuse_second(int(rank) in slow_ranks, f"{_SLOW}={rank}")
            slow_ranks[int(rank)] = _number(setting, factor)
        else:
            _refuse_second(name in numbers, name)
            numbers[name] = _whole(setting, value) if name == _SEED else _number(setting, value)
    seed = int(numbers.pop(_SEED, 0))
    found = Perturbation(seed=seed, slow_ranks=tuple(sorted(slow_ranks.items())), **numbers)
    if settings and not _disturbs(found):
        raise ConfigError(
            f"--disturb {', '.join(settings)} disturbs nothing: a seed needs noise, stragglers "
            "need straggler_share above 0, and errors of 0 and factors of 1 change nothing; add "
            "for example jitter=0.1, or leave --disturb out"
        )
    return found


def _disturbs(found: Perturbation) -> bool:
    """Whether any simulated time can differ from the modelled one."""
    strays = found.straggler_share > 0.0 and found.straggler_factor != 1.0
    errors = (found.jitter, found.shape_error, found.degree_error)
    factors = (found.bandwidth, *(factor for _, factor in found.slow_ranks))
    return strays or any(errors) or any(factor != 1.0 for factor in factors)


def _refuse_second(is_second: bool, name: str) -> None:
    if is_second:
        raise ConfigError(f"--disturb {name} is given twice; leave one out")


def _whole(setting: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise ConfigError(f"--disturb {setting!r} has {text!r}; it needs a whole number there")
    return int(text)


def _number(setting: str, text: str) -> float:
    try:
        number = float(text) if text.isascii() else inf
    except ValueError:
        number = inf
    if not isfinite(number):
        raise ConfigError(f"--disturb {setting!r} has {text!r}; it needs a finite number there")
    return number
