"""Flow matching: the loss of the clips of one launch.

    x = (1 − sigma)·clean + sigma·noise,   target = noise − clean
    loss of a clip = mean over its elements of (prediction − target)²

Source: Lipman et al. 2022 (arXiv 2210.02747), Liu et al. 2022 (rectified flow); the shift of the
noise level and logit-normal sampling: Esser et al. 2024 (arXiv 2403.03206).

Shape suffixes:
  B clips of the launch   C latent channels   F frames   H height   W width (of the latent)
  L text tokens   D text width
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

import torch
from torch import Tensor

from arachne.models.interface import VideoModel
from arachne.trainer.dataset import ClipArrays
from arachne.trainer.randomness import ClipDraw
from arachne.trainer.sampling import shifted_sigma
from arachne.trainer.settings.objective import ObjectiveSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipSample:
    """One clip with what chance decided for it."""

    arrays: ClipArrays
    noise: Tensor
    sigma: float
    has_caption: bool


def sigma_of(draw: ClipDraw, settings: ObjectiveSettings) -> float:
    """The clip's noise level, from 0 (clean) to 1 (noise), shifted."""
    if settings.timestep_sampling == "uniform":
        unshifted = draw.uniform
    else:
        unshifted = 1.0 / (1.0 + exp(-draw.normal))
    return shifted_sigma(unshifted, settings.shift)


def training_sample(arrays: ClipArrays, draw: ClipDraw, settings: ObjectiveSettings) -> ClipSample:
    """A clip as it is trained in this step."""
    return ClipSample(
        arrays=arrays,
        noise=torch.from_numpy(draw.noise),
        sigma=sigma_of(draw, settings),
        has_caption=draw.caption_uniform >= settings.caption_dropout,
    )


def clip_losses(
    model: VideoModel,
    samples: Sequence[ClipSample],
    *,
    null_text: Tensor,
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """The loss of each clip [B], from one stacked forward pass; all clips have one shape.

    Args:
        model: Predicts the velocity.
        samples: The clips.
        null_text: Token states [L, D] of a dropped caption.
        device: Where the model computes.
        dtype: The model's; the error is squared and averaged in float32 or wider.
    """
    wide = torch.promote_types(dtype, torch.float32)

    def stacked(tensors: Sequence[Tensor]) -> Tensor:
        return torch.stack(tuple(tensors)).to(device=device, dtype=wide)

    clean_BCFHW = stacked([torch.from_numpy(s.arrays.latents) for s in samples])
    noise_BCFHW = stacked([s.noise for s in samples])
    text_BLD = stacked(
        [torch.from_numpy(s.arrays.text) if s.has_caption else null_text for s in samples]
    )
    sigma_B = torch.tensor([s.sigma for s in samples], dtype=wide, device=device)
    sigma_B1111 = sigma_B.view(-1, 1, 1, 1, 1)
    noisy_BCFHW = (1.0 - sigma_B1111) * clean_BCFHW + sigma_B1111 * noise_BCFHW
    predicted_BCFHW = model.predict(noisy_BCFHW, sigma_B, text_BLD)
    error_BCFHW = predicted_BCFHW.to(wide) - (noise_BCFHW - clean_BCFHW)
    return error_BCFHW.pow(2).flatten(1).mean(dim=1)


def clip_weights(
    num_tokens: Sequence[int], is_kept: Sequence[bool], weighting: str
) -> tuple[float, ...]:
    """What each slot counts in the loss; kept slots sum to 1 over all ranks, others are 0."""
    raw = [
        float(tokens if weighting == "token" else 1) if kept else 0.0
        for tokens, kept in zip(num_tokens, is_kept, strict=True)
    ]
    total = sum(raw)
    return tuple(weight / total if total else 0.0 for weight in raw)
