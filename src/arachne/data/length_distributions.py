"""How long, and how large, the clips of public text-to-video sets are; for planning without data.

Lengths are given as quantile functions. All clips are landscape: portrait shares are not published,
and 0 is an *assumption* (a portrait size can be named where sizes are asked for).
"""

import re
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import accumulate
from math import exp, isfinite, log
from statistics import NormalDist

from arachne.core.errors import ConfigError

_SIZE = re.compile(r"([0-9]{1,9})x([0-9]{1,9})(?::([0-9.eE+-]+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeShare:
    """Frames of one size, and their weight among all sizes."""

    width: int
    height: int
    weight: float

    def __post_init__(self) -> None:
        if min(self.width, self.height) < 1 or not (self.weight > 0 and isfinite(self.weight)):
            raise ConfigError(
                f"frame size {self.width}x{self.height} with share {self.weight:g}: sides must be "
                "at least 1 and shares above 0"
            )


SizeMix = tuple[SizeShare, ...]
"""Sizes of frames; their weights need not sum to 1."""


def parsed_size_mix(text: str) -> SizeMix:
    """Read `1280x720:0.7,640x368:0.3` (WIDTHxHEIGHT:SHARE); a size without a share counts 1.

    Raises:
        ConfigError: A part has another form.
    """
    sizes: list[SizeShare] = []
    for part in text.split(","):
        match = _SIZE.fullmatch(part.strip())
        weight = _number(match[3] or "1") if match else None
        if match is None or weight is None:
            raise ConfigError(
                f"frame size {part.strip()!r} is not WIDTHxHEIGHT:SHARE; write for example "
                "1280x720:0.7,640x368:0.3"
            )
        sizes.append(SizeShare(width=int(match[1]), height=int(match[2]), weight=weight))
    return tuple(sizes)


def size_at(mix: SizeMix, share: float) -> SizeShare:
    """The size that holds `share` (0 to 1) of the mix, sizes laid end to end in their order."""
    ends = list(accumulate(size.weight for size in mix))
    return mix[min(bisect_left(ends, share * ends[-1]), len(mix) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthDistribution:
    """What the clips of one set are like.

    Attributes:
        name: How the command line calls it.
        origin: Where the figures come from, and what is assumed.
        length_s: Seconds that a given share (above 0, below 1) of the clips do not exceed.
        sizes: Frame sizes of the source files.
    """

    name: str
    origin: str
    length_s: Callable[[float], float]
    sizes: SizeMix


def distribution_named(name: str) -> LengthDistribution:
    """Look a distribution up.

    Raises:
        ConfigError: None has this name.
    """
    if name not in DISTRIBUTIONS:
        close = get_close_matches(name, DISTRIBUTIONS, n=1)
        nearest = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(
            f"no clip source is called {name!r}{nearest}; name {', '.join(DISTRIBUTIONS)}, or a "
            "manifest.parquet that exists"
        )
    return DISTRIBUTIONS[name]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _lognormal(mean: float, deviation: float) -> Callable[[float], float]:
    """Quantiles of lengths whose logarithm is normal."""
    logarithms = NormalDist(mean, deviation)
    return lambda share: exp(logarithms.inv_cdf(share))


def _interpolated(*points: tuple[float, float]) -> Callable[[float], float]:
    """Quantiles through (share, seconds) points that begin at share 0 and end at 1.

    Between two points the logarithm of the length is linear in the share.
    """
    shares = [share for share, _ in points]
    logarithms = [log(seconds) for _, seconds in points]

    def length_s(share: float) -> float:
        above = bisect_left(shares, share)
        part = (share - shares[above - 1]) / (shares[above] - shares[above - 1])
        return exp(logarithms[above - 1] * (1.0 - part) + logarithms[above] * part)

    return length_s


_PANDA_70M = LengthDistribution(
    name="panda70m",
    origin=(
        "5, 25, 50, 75 and 95 % quantiles, shortest and longest of the 6,000 clips of Panda-70M's "
        "validation list, joined log-linearly (mean 11.4 s; the list's is 11.1 s); 1280x720 is an "
        "assumption, nearly all are 16:9"
    ),
    length_s=_interpolated(
        (0.0, 2.0),
        (0.05, 2.27),
        (0.25, 3.40),
        (0.5, 5.44),
        (0.75, 12.06),
        (0.95, 48.0),
        (1.0, 48.1),
    ),
    sizes=(SizeShare(width=1280, height=720, weight=1.0),),
)

_WEBVID_10M = LengthDistribution(
    name="webvid10m",
    origin=(
        "lognormal(2.732, 0.550), fitted to the 5,000 clips of WebVid-10M's validation list; "
        "640x360 is an assumption"
    ),
    length_s=_lognormal(2.732, 0.550),
    sizes=(SizeShare(width=640, height=360, weight=1.0),),
)

_OPEN_SORA = LengthDistribution(
    name="opensora1.2-stage3",
    origin=(
        "shares below 5, 10 and 15 s and by resolution of Open-Sora 1.2's stage 3, 2 million "
        "clips, read from its figure; assumptions: none below 2 s or above 20 s, log-linear "
        "between, and 854x480, 1280x720 and 1920x1080 stand for below 720p, 720p and above"
    ),
    length_s=_interpolated((0.0, 2.0), (0.431, 5.0), (0.703, 10.0), (0.922, 15.0), (1.0, 20.0)),
    sizes=(
        SizeShare(width=854, height=480, weight=0.010),
        SizeShare(width=1280, height=720, weight=0.711),
        SizeShare(width=1920, height=1080, weight=0.279),
    ),
)

DISTRIBUTIONS: dict[str, LengthDistribution] = {
    found.name: found for found in (_PANDA_70M, _WEBVID_10M, _OPEN_SORA)
}
