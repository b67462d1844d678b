"""DDPM: discrete timesteps 0 … 999, at which a model predicts v, the noise, or the clip.

    x_t = sqrt(a_t)·clean + sqrt(1 − a_t)·noise

    v = sqrt(a_t)·noise − sqrt(1 − a_t)·clean

a_t is the product of 1 − beta up to t, with `scaled_linear` betas: squares of numbers evenly spaced
between the roots of 0.00085 and 0.012. CogVideoX divides the signal-to-noise ratio a / (1 − a) by a
factor (1 for 5B, 3 for 2B), and then rescales sqrt(a) linearly so that the last one is 0.

Source: Ho et al. 2020 (arXiv 2006.11239); v: Salimans, Ho 2022 (arXiv 2202.00512); zero terminal
SNR: Lin et al. 2023 (arXiv 2305.08891), algorithm 1; the figures: diffusers'
`CogVideoXDDIMScheduler`, as `convert_cogvideox_to_diffusers.py` configures it.
"""

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from arachne.trainer.mixture import Mixture
from arachne.trainer.noise_levels import drawn_level, even_level
from arachne.trainer.randomness import ClipDraw
from arachne.trainer.sampling import SamplerStep
from arachne.trainer.settings.objective import ObjectiveSettings

NUM_TIMESTEPS = 1000

_BETA_START, _BETA_END = 0.00085, 0.012

_UNSHIFTED = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ddpm:
    """DDPM as a run file sets it; a clip's level is its timestep / 1000.

    Attributes:
        settings: The run's.
        auto_snr_shift: What `snr_shift` is where the run leaves it to the family.
    """

    settings: ObjectiveSettings
    auto_snr_shift: float = 1.0

    def level(self, draw: ClipDraw, num_tokens: int) -> float:
        """The clip's timestep / 1000; no size of a clip shifts it."""
        sampling = self.settings.sampling("ddpm")
        return _discrete(drawn_level(draw, self.settings, sampling, _UNSHIFTED))

    def even_level(self, share: float, num_tokens: int) -> float:
        """The timestep / 1000 that lies `share` of the way through the trained range."""
        return _discrete(even_level(share, self.settings, _UNSHIFTED))

    def loss_weight(self, level: float, num_tokens: int) -> float:
        """What a timestep counts in the loss; with `min_snr`, by what is predicted:

            clean  min(SNR, gamma)
            noise  min(SNR, gamma) / SNR
            v      min(SNR, gamma) / (SNR + 1)

        Source: Hang et al. 2023 (arXiv 2303.09556), equation 6 and appendix; SNR = a / (1 − a).
        """
        if self.settings.loss_weighting != "min_snr":
            return 1.0
        kept = float(self._kept_signal[_timestep(level)])
        snr = kept / (1.0 - kept)
        counted = min(snr, self.settings.min_snr_gamma)
        if self.settings.prediction == "clean":
            return counted
        return counted / (snr if self.settings.prediction == "noise" else snr + 1.0)

    def mixture(self, level_B: Tensor) -> Mixture:
        """How clip and noise are mixed, and what is predicted."""
        timestep_B = (level_B * NUM_TIMESTEPS).round().long()
        kept = torch.from_numpy(self._kept_signal).to(level_B.device)[timestep_B]
        clean_B, noise_B = kept.sqrt().to(level_B), (1.0 - kept).sqrt().to(level_B)
        one_B, zero_B = torch.ones_like(level_B), torch.zeros_like(level_B)
        target_clean_B, target_noise_B = {
            "v": (-noise_B, clean_B),
            "noise": (zero_B, one_B),
            "clean": (one_B, zero_B),
        }[self.settings.prediction]
        return Mixture(
            clean=clean_B,
            noise=noise_B,
            target_clean=target_clean_B,
            target_noise=target_noise_B,
        )

    def sampler_steps(self, num_steps: int, num_tokens: int) -> tuple[SamplerStep, ...]:
        """DDIM without added noise, from the last timestep to the clip.

            x' = sqrt(a')·clip + sqrt(1 − a')·noise,  both as the prediction and x have them

        Source: Song et al. 2020 (arXiv 2010.02502), equation 12 with sigma 0; timesteps spaced
        `trailing`, as Lin et al. 2023 ask. diffusers' scheduler goes 1000 // steps back each time,
        which is the same where steps divide 1000; here each step leads to the next timestep.
        """
        spaced = np.round(np.arange(NUM_TIMESTEPS, 0, -NUM_TIMESTEPS / num_steps)).astype(int) - 1
        signals = [*(float(self._kept_signal[t]) for t in spaced), 1.0]
        return tuple(
            _ddim_step(int(t) / NUM_TIMESTEPS, signal, next_signal, self.settings.prediction)
            for t, (signal, next_signal) in zip(spaced, pairwise(signals), strict=True)
        )

    @property
    def _kept_signal(self) -> NDArray[np.float64]:
        snr_shift = self.settings.snr_shift
        return kept_signal(
            self.auto_snr_shift if snr_shift == "auto" else snr_shift,
            self.settings.zero_terminal_snr,
        )


@cache
def kept_signal(snr_shift: float, zero_terminal_snr: bool) -> NDArray[np.float64]:
    """a_t of each timestep: the clip's share of the variance."""
    betas = np.linspace(_BETA_START**0.5, _BETA_END**0.5, NUM_TIMESTEPS) ** 2
    kept = np.cumprod(1.0 - betas)
    kept = kept / (snr_shift + (1.0 - snr_shift) * kept)
    if zero_terminal_snr:
        roots = np.sqrt(kept)
        kept = ((roots - roots[-1]) * roots[0] / (roots[0] - roots[-1])) ** 2
    return kept


def _timestep(level: float) -> int:
    return round(level * NUM_TIMESTEPS)


def _discrete(level: float) -> float:
    return min(int(level * NUM_TIMESTEPS), NUM_TIMESTEPS - 1) / NUM_TIMESTEPS


def _ddim_step(level: float, kept: float, next_kept: float, prediction: str) -> SamplerStep:
    """The next x as a sum of x and of what was predicted."""
    clean, noise = kept**0.5, (1.0 - kept) ** 0.5
    next_clean, next_noise = next_kept**0.5, (1.0 - next_kept) ** 0.5
    if prediction == "v":  # clip = clean·x − noise·v, noise = noise·x + clean·v
        keep = next_clean * clean + next_noise * noise
        move = next_noise * clean - next_clean * noise
    elif prediction == "noise":  # clip = (x − noise·predicted) / clean
        keep = next_clean / clean
        move = next_noise - next_clean * noise / clean
    else:  # noise = (x − clean·predicted) / noise
        keep = next_noise / noise
        move = next_clean - next_noise * clean / noise
    return SamplerStep(level=level, keep=keep, move=move)
