"""Videos out of noise, step by step along what a model predicts.

The convention of flow matching: x(sigma) = (1 − sigma) · x0 + sigma · noise, velocity = noise − x0,
so that dx/dsigma = velocity and sampling walks from sigma 1 to sigma 0 by Euler's steps. diffusers'
Euler scheduler takes the same steps, but casts to float32 and applies the shift to the end of its
range as well; a few lines of our own keep the dtype and exactly the shift that training uses.

Shape suffixes:
  B batch   C latent channels   F latent frames   H latent height   W latent width
  L text tokens   D text width
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from arachne.trainer.noise_levels import shifted_sigma

Predict = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""What a model predicts of (latents [B, C, F, H, W], noise level [B], text [B, L, D])."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerStep:
    """One step: latents become keep · latents + move · prediction at the noise level."""

    level: float
    keep: float
    move: float


def sigma_schedule(steps: int, shift: float) -> tuple[float, ...]:
    """`steps` + 1 noise levels from 1 to 0, evenly spaced before the shift."""
    assert steps >= 1, steps
    return tuple(shifted_sigma(1.0 - index / steps, shift) for index in range(steps + 1))


def noise_of(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal noise on the CPU that depends on shape and seed alone, whatever the device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float32).to(dtype)


def euler_steps(steps: int, shift: float) -> tuple[SamplerStep, ...]:
    """Steps along the velocity of flow matching, from noise to clean."""
    return tuple(
        SamplerStep(level=sigma, keep=1.0, move=next_sigma - sigma)
        for sigma, next_sigma in pairwise(sigma_schedule(steps, shift))
    )


@torch.no_grad()
def walk(
    predict: Predict,
    noise_BCFHW: torch.Tensor,
    text_BLD: torch.Tensor,
    *,
    null_text_LD: torch.Tensor,
    steps: Sequence[SamplerStep],
    guidance: float,
) -> torch.Tensor:
    """Latents, shaped like the noise, that fit the text.

    Classifier-free guidance (Ho, Salimans 2022): prediction = null + guidance · (text − null), both
    in one call of `predict` on a doubled batch; guidance 1 needs no null text and runs without.
    """
    latents_BCFHW = noise_BCFHW
    num_clips = len(noise_BCFHW)
    is_guided = guidance != 1.0
    if is_guided:
        null_BLD = null_text_LD.to(text_BLD).expand_as(text_BLD)
        text_BLD = torch.cat([text_BLD, null_BLD])
    for step in steps:
        doubled = torch.cat([latents_BCFHW] * 2) if is_guided else latents_BCFHW
        level_B = torch.full(
            (len(doubled),), step.level, dtype=torch.float64, device=doubled.device
        )
        predicted = predict(doubled, level_B, text_BLD)
        if is_guided:
            with_text, without = predicted.split(num_clips)
            predicted = without + guidance * (with_text - without)
        latents_BCFHW = step.keep * latents_BCFHW + step.move * predicted
    return latents_BCFHW
