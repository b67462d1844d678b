"""The loss of the clips of one launch, under any objective.

    loss of a clip = weight · mean over its elements of (prediction − target)²

Where image to video keeps a clip's first latent frame, that frame is no element of the loss.
What is mixed and predicted at a noise level: `flow_matching` and `ddpm`.

Shape suffixes:
  B clips of the launch   C latent channels   F frames   H height   W width (of the latent)
  L text tokens   D text width
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from arachne.core.families import family_named
from arachne.models.interface import FirstFrames, VideoModel
from arachne.models.kept_frame import drawn
from arachne.trainer.config import RunConfig
from arachne.trainer.dataset import ClipArrays
from arachne.trainer.ddpm import Ddpm
from arachne.trainer.flow_matching import FlowMatching
from arachne.trainer.mixture import Mixture
from arachne.trainer.randomness import ClipDraw
from arachne.trainer.sampling import SamplerStep


class Objective(Protocol):
    """How noise is added, what a model predicts, and how a video is made of its predictions.

    A level is what `VideoModel.predict` gets: sigma of flow matching, timestep / 1000 of DDPM.
    """

    def level(self, draw: ClipDraw, num_tokens: int) -> float:
        """The level that a clip of so many tokens trains at."""
        ...

    def even_level(self, share: float, num_tokens: int) -> float:
        """The level that lies `share` of the way through the trained range."""
        ...

    def loss_weight(self, level: float, num_tokens: int) -> float:
        """What a level counts in the loss."""
        ...

    def mixture(self, level_B: Tensor) -> Mixture:
        """What the model sees, and what it is to predict."""
        ...

    def sampler_steps(self, num_steps: int, num_tokens: int) -> tuple[SamplerStep, ...]:
        """The way from noise to a clip of so many tokens."""
        ...


def objective_of(config: RunConfig) -> Objective:
    """The run's objective."""
    if config.objective_kind == "flow_matching":
        return FlowMatching(settings=config.objective)
    family = family_named(config.model.family)
    return Ddpm(settings=config.objective, auto_snr_shift=family.snr_shift)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipSample:
    """One clip with what chance decided for it.

    Attributes:
        sigma: Its noise level, from 0 (clean) to 1 (noise).
        loss_weight: What that level counts in the loss.
    """

    arrays: ClipArrays
    noise: Tensor
    sigma: float
    has_caption: bool
    loss_weight: float = 1.0


def training_sample(
    arrays: ClipArrays,
    draw: ClipDraw,
    objective: Objective,
    *,
    num_tokens: int,
    caption_dropout: float,
) -> ClipSample:
    """A clip as it is trained in this step."""
    level = objective.level(draw, num_tokens)
    return ClipSample(
        arrays=arrays,
        noise=torch.from_numpy(draw.noise),
        sigma=level,
        has_caption=draw.caption_uniform >= caption_dropout,
        loss_weight=objective.loss_weight(level, num_tokens),
    )


def clip_losses(
    model: VideoModel,
    samples: Sequence[ClipSample],
    *,
    objective: Objective,
    null_text: Tensor,
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """The loss of each clip [B], from one stacked forward pass; all clips have one shape.

    Args:
        model: Predicts what the objective asks for.
        samples: The clips.
        objective: What is mixed and predicted.
        null_text: Token states [L, D] of a dropped caption.
        device: Where the model computes.
        dtype: The model's; the error is squared and averaged in float32 or wider.
    """
    wide = torch.promote_types(dtype, torch.float32)

    def stacked(tensors: Sequence[Tensor]) -> Tensor:
        return torch.stack(tuple(tensors)).to(device=device, dtype=wide)

    first = _first_frames(samples)
    clean_BCFHW = stacked([torch.from_numpy(s.arrays.latents) for s in samples])
    noise_BCFHW = stacked([s.noise for s in samples])
    text_BLD = stacked(
        [torch.from_numpy(s.arrays.text) if s.has_caption else null_text for s in samples]
    )
    sigma_B = torch.tensor([s.sigma for s in samples], dtype=wide, device=device)
    mixture = objective.mixture(sigma_B)

    def mixed(clean_B: Tensor, noise_B: Tensor) -> Tensor:
        shape = (-1, 1, 1, 1, 1)
        return clean_B.view(shape) * clean_BCFHW + noise_B.view(shape) * noise_BCFHW

    noisy_BCFHW = mixed(mixture.clean, mixture.noise)
    keeps_first = model.shape.keeps_first_frame
    if keeps_first:  # it is the clip's own
        first = FirstFrames(latents=clean_BCFHW[:, :, :1])
    if first is None:
        predicted_BCFHW = model.predict(noisy_BCFHW, sigma_B, text_BLD)
    else:
        first = first.to(device).to(wide)
        predicted_BCFHW = model.predict(noisy_BCFHW, sigma_B, text_BLD, first)
    target_BCFHW = mixed(mixture.target_clean, mixture.target_noise)
    error_BCFHW = predicted_BCFHW.to(wide) - target_BCFHW
    if keeps_first:
        error_BCFHW = drawn(error_BCFHW)
    weight_B = torch.tensor([s.loss_weight for s in samples], dtype=wide, device=device)
    return weight_B * error_BCFHW.pow(2).flatten(1).mean(dim=1)


def _first_frames(samples: Sequence[ClipSample]) -> FirstFrames | None:
    """The clips' first frames, where they are known: in image to video."""
    latents = [s.arrays.first_latents for s in samples if s.arrays.first_latents is not None]
    states = [s.arrays.image_states for s in samples if s.arrays.image_states is not None]
    if not latents:
        return None
    return FirstFrames(
        latents=torch.stack([torch.from_numpy(each) for each in latents]),
        states=torch.stack([torch.from_numpy(each) for each in states]) if states else None,
    )


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
