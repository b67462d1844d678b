"""Flow matching: the model predicts the velocity from the clip to the noise.

    x = (1 − sigma)·clean + sigma·noise,   target = noise − clean

Source: Lipman et al. 2022 (arXiv 2210.02747), Liu et al. 2022 (rectified flow).
"""

from dataclasses import dataclass
from math import pi

import torch
from torch import Tensor

from arachne.trainer.mixture import Mixture
from arachne.trainer.noise_levels import (
    drawn_level,
    even_level,
    logit_normal_density,
    shift_of,
    shifted_sigma,
)
from arachne.trainer.randomness import ClipDraw
from arachne.trainer.sampling import SamplerStep, euler_steps
from arachne.trainer.settings.objective import ObjectiveSettings

_LOWEST_WEIGHTED = 1e-3
"""`sigma_sqrt` has no limit at 0; the lowest level of diffusers' 1000 timesteps is 1/1000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowMatching:
    """Flow matching as a run file sets it; a clip's level is its sigma."""

    settings: ObjectiveSettings

    def level(self, draw: ClipDraw, num_tokens: int) -> float:
        """The clip's sigma: drawn, and shifted by its size."""
        sampling = self.settings.sampling("flow_matching")
        return drawn_level(draw, self.settings, sampling, shift_of(self.settings, num_tokens))

    def even_level(self, share: float, num_tokens: int) -> float:
        """The sigma that lies `share` of the way through the trained range."""
        return even_level(share, self.settings, shift_of(self.settings, num_tokens))

    def loss_weight(self, level: float, num_tokens: int) -> float:
        """What a sigma counts in the loss.

            cosmap      2 / (π (1 − 2 sigma + 2 sigma²))
            sigma_sqrt  1 / sigma²

        and `logit_normal` is the density that logit-normal sampling would have at the unshifted
        level, which gives uniform sampling the same expected loss. Source: Esser et al. 2024
        (arXiv 2403.03206), section 3.1, and `compute_loss_weighting_for_sd3` of diffusers.
        """
        if self.settings.loss_weighting == "cosmap":
            return 2.0 / (pi * (1.0 - 2.0 * level + 2.0 * level**2))
        if self.settings.loss_weighting == "sigma_sqrt":
            return max(level, _LOWEST_WEIGHTED) ** -2.0
        if self.settings.loss_weighting == "logit_normal":
            unshifted = shifted_sigma(level, 1.0 / shift_of(self.settings, num_tokens))
            return logit_normal_density(unshifted, self.settings)
        return 1.0

    def mixture(self, level_B: Tensor) -> Mixture:
        """How clip and noise are mixed, and what is predicted."""
        one_B = torch.ones_like(level_B)
        return Mixture(clean=1.0 - level_B, noise=level_B, target_clean=-one_B, target_noise=one_B)

    def sampler_steps(self, num_steps: int, num_tokens: int) -> tuple[SamplerStep, ...]:
        """Euler steps from noise to clean, shifted as in training."""
        return euler_steps(num_steps, shift_of(self.settings, num_tokens))
