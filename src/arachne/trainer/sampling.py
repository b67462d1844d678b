"""Videos out of noise: Euler steps along the velocity that a flow-matching model predicts.

The convention of training: x(sigma) = (1 − sigma) · x0 + sigma · noise, velocity = noise − x0, so
that dx/dsigma = velocity and sampling walks from sigma 1 to sigma 0. diffusers' Euler scheduler
takes the same steps, but casts to float32 and applies the shift to the end of its range as well;
a few lines of our own keep the dtype and exactly the shift that training uses.

Shape suffixes:
  B batch   C latent channels   F latent frames   H latent height   W latent width
  L text tokens   D text width
"""

from collections.abc import Callable
from itertools import pairwise

import torch

Predict = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""The velocity of (latents [B, C, F, H, W], sigma [B], text [B, L, D])."""


def shifted_sigma(sigma: float, shift: float) -> float:
    """The noise level after the flow shift: shift·sigma / (1 + (shift − 1)·sigma).

    Source: Esser et al. 2024 (Stable Diffusion 3), section 5.3.2.
    """
    return shift * sigma / (1.0 + (shift - 1.0) * sigma)


def sigma_schedule(steps: int, shift: float) -> tuple[float, ...]:
    """`steps` + 1 noise levels from 1 to 0, evenly spaced before the shift."""
    assert steps >= 1, steps
    return tuple(shifted_sigma(1.0 - index / steps, shift) for index in range(steps + 1))


def noise_of(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal noise on the CPU that depends on shape and seed alone, whatever the device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float32).to(dtype)


@torch.no_grad()
def sample_latents(
    predict: Predict,
    noise_BCFHW: torch.Tensor,
    text_BLD: torch.Tensor,
    *,
    null_text_LD: torch.Tensor,
    steps: int = 30,
    shift: float = 3.0,
    guidance: float = 5.0,
) -> torch.Tensor:
    """Latents, shaped like the noise, that fit the text.

    Classifier-free guidance (Ho, Salimans 2022): velocity = null + guidance · (text − null), both
    in one call of `predict` on a doubled batch; guidance 1 needs no null text and runs without.
    """
    latents_BCFHW = noise_BCFHW
    sigmas = sigma_schedule(steps, shift)
    num_clips = len(noise_BCFHW)
    is_guided = guidance != 1.0
    if is_guided:
        null_BLD = null_text_LD.to(text_BLD).expand_as(text_BLD)
        text_BLD = torch.cat([text_BLD, null_BLD])
    for sigma, next_sigma in pairwise(sigmas):
        doubled = torch.cat([latents_BCFHW] * 2) if is_guided else latents_BCFHW
        sigma_B = torch.full((len(doubled),), sigma, dtype=torch.float64, device=doubled.device)
        velocity = predict(doubled, sigma_B, text_BLD)
        if is_guided:
            with_text, without = velocity.split(num_clips)
            velocity = without + guidance * (with_text - without)
        latents_BCFHW = latents_BCFHW + (next_sigma - sigma) * velocity
    return latents_BCFHW
