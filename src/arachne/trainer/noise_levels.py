"""Which noise level a clip trains at: from a counted draw to a number from 0 (clean) to 1 (noise).

A level is a quantile of the chosen distribution, at the draw's uniform number, and then shifted:

    uniform       level = u
    logit_normal  level = sigmoid(mean + std · z),  z standard normal
    mode          level = u − scale · (sin²(πu/2) − u)
    shift         level becomes shift · level / (1 + (shift − 1) · level)

Source: Esser et al. 2024 (Stable Diffusion 3, arXiv 2403.03206), sections 3.1 and 5.3.2; `mode` is
their f_mode(1 − u), which has the same distribution and rises. A range of levels cuts the
distribution off, so that levels inside are as likely, to each other, as without it.
"""

from math import exp, log, pi, sin, sqrt
from statistics import NormalDist

from arachne.trainer.randomness import ClipDraw
from arachne.trainer.settings.objective import LEAST_SHIFT, ObjectiveSettings, Sampling

_SMALLEST, _LARGEST = 2.0**-60, 1.0 - 2.0**-53
"""Quantiles of the normal distribution are finite between them."""


def shifted_sigma(sigma: float, shift: float) -> float:
    """The noise level after the flow shift: shift·sigma / (1 + (shift − 1)·sigma).

    Source: Esser et al. 2024 (Stable Diffusion 3), section 5.3.2. Its inverse is the shift of
    1 / shift.
    """
    return shift * sigma / (1.0 + (shift - 1.0) * sigma)


def shift_of(settings: ObjectiveSettings, num_tokens: int) -> float:
    """The shift of a clip: a given number, or by its tokens, from `LEAST_SHIFT` to `max_shift`.

        shift = exp(mu),  mu = mu_0 + (mu_1 − mu_0) · (tokens − n_0) / (n_1 − n_0)

    Source: `calculate_shift` of diffusers' Flux and LTX pipelines, with the ends of Flux
    (0.5 at 256 tokens, 1.15 at 4096); LTX-Video has 0.95 at 1024 and 2.05 at 4096. The line was
    made for pictures: a long video is far beyond its end, where only the cap is sensible.
    """
    if settings.shift != "auto":
        return settings.shift
    (first, last), (low, high) = settings.shift_tokens, settings.shift_exponents
    exponent = low + (high - low) * (num_tokens - first) / (last - first)
    return exp(min(max(exponent, log(LEAST_SHIFT)), log(settings.max_shift)))


def drawn_level(
    draw: ClipDraw, settings: ObjectiveSettings, sampling: Sampling, shift: float
) -> float:
    """The clip's noise level, shifted, within `timestep_range`."""
    low, high = settings.timestep_range
    is_whole = (low, high) == (0.0, 1.0)
    if sampling == "logit_normal" and is_whole and not settings.stratified:
        unshifted = _sigmoid(settings.logit_mean + settings.logit_std * draw.normal)
    else:
        lowest, highest = (
            _share_below(shifted_sigma(end, 1.0 / shift), settings, sampling) for end in (low, high)
        )
        unshifted = _quantile(lowest + (highest - lowest) * draw.uniform, settings, sampling)
    return min(max(shifted_sigma(unshifted, shift), low), high)


def even_level(share: float, settings: ObjectiveSettings, shift: float) -> float:
    """The level that lies `share` of the way through the range, evenly before the shift."""
    low, high = (shifted_sigma(end, 1.0 / shift) for end in settings.timestep_range)
    return shifted_sigma(low + share * (high - low), shift)


def logit_normal_density(level: float, settings: ObjectiveSettings) -> float:
    """How likely an unshifted level is under the logit-normal distribution; 0 at both ends.

        density = exp(−(logit(level) − mean)² / (2 std²)) / (std · sqrt(2π) · level · (1 − level))

    Source: Esser et al. 2024, section 3.1.
    """
    if not 0.0 < level < 1.0:
        return 0.0
    distance = (log(level / (1.0 - level)) - settings.logit_mean) / settings.logit_std
    scale = settings.logit_std * sqrt(2.0 * pi) * level * (1.0 - level)
    return exp(-0.5 * distance**2) / scale


def _quantile(u: float, settings: ObjectiveSettings, sampling: Sampling) -> float:
    """The level below which a share `u` of a distribution's levels lies."""
    if sampling == "uniform":
        return u
    if sampling == "mode":
        return u - settings.mode_scale * (sin(0.5 * pi * u) ** 2 - u)
    normal = NormalDist().inv_cdf(min(max(u, _SMALLEST), _LARGEST))
    return _sigmoid(settings.logit_mean + settings.logit_std * normal)


def _share_below(level: float, settings: ObjectiveSettings, sampling: Sampling) -> float:
    """The share of a distribution's levels that lie below a level; `_quantile` turned around."""
    if sampling == "uniform" or level <= 0.0 or level >= 1.0:
        return level
    if sampling == "logit_normal":
        normal = NormalDist(settings.logit_mean, settings.logit_std)
        return normal.cdf(log(level / (1.0 - level)))
    low, high = 0.0, 1.0
    while high - low > 1e-15:
        middle = 0.5 * (low + high)
        if _quantile(middle, settings, sampling) < level:
            low = middle
        else:
            high = middle
    return high


def _sigmoid(value: float) -> float:
    return 1.0 / (1.0 + exp(-value)) if value > -700.0 else 0.0
