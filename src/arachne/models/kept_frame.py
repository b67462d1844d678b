"""Image to video by a first frame that is kept: it goes in clean, at noise level 0.

So do LTX-Video and Wan 2.2 TI2V-5B, whose weights know text to video and image to video alike, and
HunyuanVideo's weights of `token_replace`. A frame's tokens get the timestep 0, all others the
clip's; what is predicted for that frame counts nowhere. Sources: diffusers'
`LTXImageToVideoPipeline`, `WanImageToVideoPipeline` with `expand_timesteps`, and
`HunyuanVideoImageToVideoPipeline`.

Shape suffixes:
  B batch   C latent channels   F latent frames   H latent height   W latent width   S video tokens
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from arachne.core.families import family_named
from arachne.core.sequence_layout import SequenceLayout, SplitInput

if TYPE_CHECKING:
    from torch import Tensor, nn

    from arachne.models.diffusers_family import FirstFrameForward, Forward
    from arachne.models.interface import FirstFrames


def keeping_first_frame(forward: Forward, family: str) -> FirstFrameForward:
    """A family's forward pass with the first latent frame as it is, at timestep 0.

    `forward` is given a timestep for each token [B, S].
    """

    def first_frame_forward(
        module: nn.Module,
        latents_BCFHW: Tensor,
        timestep_B: Tensor,
        text_BLD: Tensor,
        first: FirstFrames,
    ) -> Tensor:
        patch = family_named(family).geometry.patch
        num_frames, *sides = latents_BCFHW.shape[2:]
        timestep_BS = timesteps_of_tokens(
            timestep_B, num_frames, tokens_per_frame=prod(sides) // prod(patch)
        )
        return forward(module, with_kept_frame(latents_BCFHW, first), timestep_BS, text_BLD)

    return first_frame_forward


def with_kept_frame(latents_BCFHW: Tensor, first: FirstFrames) -> Tensor:
    """Latents with the clip's own first frame.

    A clip of one latent frame is a picture: nothing comes after it, so it is drawn as any picture.
    """
    import torch

    if latents_BCFHW.shape[2] == 1:
        return latents_BCFHW
    kept = first.latents[:, :, :1].to(latents_BCFHW.dtype)
    return torch.cat([kept, latents_BCFHW[:, :, 1:]], dim=2)


def timesteps_of_tokens(timestep_B: Tensor, num_frames: int, *, tokens_per_frame: int) -> Tensor:
    """The timestep of each token [B, S] of such a clip."""
    timestep_BF = timestep_B[:, None].repeat(1, num_frames)
    if num_frames > 1:
        timestep_BF[:, 0] = 0.0
    return timestep_BF.repeat_interleave(tokens_per_frame, dim=1)


def drawn(error_BCFHW: Tensor) -> Tensor:
    """The frames that a model draws of a clip: all but the one that is kept."""
    return error_BCFHW[:, :, 1:] if error_BCFHW.shape[2] > 1 else error_BCFHW


def towards_kept(
    predicted_BCFHW: Tensor, latents_BCFHW: Tensor, sigma: float, first: FirstFrames
) -> Tensor:
    """The velocities of a step, with those that lead straight to the kept frame.

    From x at sigma, (x - kept) / sigma leads to it by sigma 0, whatever steps are taken.
    """
    if predicted_BCFHW.shape[2] == 1:
        return predicted_BCFHW
    predicted_BCFHW = predicted_BCFHW.clone()
    predicted_BCFHW[:, :, 0] = (latents_BCFHW[:, :, 0] - first.latents[:, :, 0]) / sigma
    return predicted_BCFHW


def token_times(layout: SequenceLayout) -> SequenceLayout:
    """The layout of a model that gets a timestep for each token."""
    times = SplitInput(module="", argument="timestep", stream="video", dim=1)
    return replace(layout, split_inputs=(times, *layout.split_inputs))
