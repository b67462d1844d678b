"""A plain training step of each family, as one would write it with diffusers alone.

Nothing of Arachne is called here: the class's own forward, diffusers' own schedulers.
"""

from types import SimpleNamespace
from typing import Any

import torch
from diffusers import (
    CogVideoXDDIMScheduler,
    CogVideoXPipeline,
    FlowMatchEulerDiscreteScheduler,
)
from torch import Tensor


def plain_loss(
    family: str, module: Any, clean: Tensor, noise: Tensor, text: Tensor, mask: Tensor, index: int
) -> Tensor:
    """Mean squared error of one clip, at the scheduler's timestep `index`; float64."""
    if family.startswith("cogvideox"):
        return cogvideox_loss(module, clean, noise, text, index)
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    timestep = scheduler.timesteps[index : index + 1]
    noisy = scheduler.scale_noise(clean, timestep, noise)
    exact = scheduler.sigmas[index : index + 1].double() * 1000.0
    if family == "mochi":  # runs from 0 (noise) to 1000 (clean) and predicts what leads there
        predicted = FORWARDS[family](module, noisy, 1000.0 - exact, text, mask)
        return (predicted - (clean - noise)).pow(2).mean()
    predicted = FORWARDS[family](module, noisy, exact, text, mask)
    return (predicted - (noise - clean)).pow(2).mean()


def level_of(family: str, index: int) -> float:
    """The level at which Arachne has the same step: sigma, or timestep / 1000."""
    if family.startswith("cogvideox"):
        return index / 1000
    return float(FlowMatchEulerDiscreteScheduler(shift=3.0).sigmas[index])


def cogvideox_loss(
    module: Any,
    clean: Tensor,
    noise: Tensor,
    text: Tensor,
    timestep: int,
    first: Tensor | None = None,
) -> Tensor:
    """As diffusers' script trains it: x0 from the predicted velocity, weighted by 1 / (1 - a)."""
    has_rotary = module.config.use_rotary_positional_embeddings
    scheduler = CogVideoXDDIMScheduler(
        prediction_type="v_prediction",
        rescale_betas_zero_snr=True,
        snr_shift_scale=1.0 if has_rotary else 3.0,
    )
    timesteps = torch.tensor([timestep])
    clean, noise = clean.transpose(1, 2), noise.transpose(1, 2)
    noisy = scheduler.add_noise(clean, noise, timesteps)
    seen = noisy if first is None else torch.cat([noisy, first.transpose(1, 2)], dim=2)
    output = module(
        seen,
        text,
        timesteps.double(),
        ofs=torch.tensor([2.0], dtype=text.dtype) if module.config.ofs_embed_dim else None,
        image_rotary_emb=cogvideox_rotary(module, *noisy.shape) if has_rotary else None,
        return_dict=False,
    )[0]
    predicted = scheduler.get_velocity(output, noisy, timesteps)
    weight = 1.0 / (1.0 - scheduler.alphas_cumprod[timesteps])
    return (weight.view(-1, 1, 1, 1, 1) * (predicted - clean).pow(2)).mean()


def cogvideox_rotary(module: Any, *sizes: int) -> Any:
    """What the pipeline makes for latents [B, F, C, H, W]."""
    config: Any = module.config
    pipeline = SimpleNamespace(
        vae_scale_factor_spatial=8, transformer=SimpleNamespace(config=config)
    )
    return CogVideoXPipeline._prepare_rotary_positional_embeddings(
        pipeline, 8 * sizes[3], 8 * sizes[4], sizes[1], torch.device("cpu")
    )


def wan(module: Any, noisy: Tensor, timestep: Tensor, text: Tensor, mask: Tensor) -> Tensor:
    return module(noisy, timestep, text, return_dict=False)[0]


def hunyuan(
    module: Any,
    noisy: Tensor,
    timestep: Tensor,
    text: Tensor,
    mask: Tensor,
    first: Tensor | None = None,
) -> Tensor:
    pooled, words = text[:, 0, : module.config.pooled_projection_dim], text[:, 1:]
    if first is not None:
        where = torch.zeros_like(first[:, :1])
        where[:, :, 0] = 1.0
        noisy = torch.cat([noisy, first, where], dim=1)
    guidance = torch.tensor([1000.0], dtype=text.dtype) if first is None else None
    return module(noisy, timestep, words, mask, pooled, guidance, return_dict=False)[0]


def hunyuan15(
    module: Any,
    noisy: Tensor,
    timestep: Tensor,
    text: Tensor,
    mask: Tensor,
    first: Tensor | None = None,
    image: Tensor | None = None,
) -> Tensor:
    condition = torch.zeros(1, noisy.shape[1] + 1, *noisy.shape[2:], dtype=noisy.dtype)
    if first is not None:
        condition[:, :-1], condition[:, -1, 0] = first, 1.0
    return module(
        torch.cat([noisy, condition], dim=1),
        timestep,
        text,
        mask,
        encoder_hidden_states_2=torch.zeros(1, 3, 1472, dtype=text.dtype),
        encoder_attention_mask_2=torch.zeros(1, 3, dtype=text.dtype),
        image_embeds=torch.zeros(1, 2, 1152, dtype=text.dtype) if image is None else image,
        return_dict=False,
    )[0]


def ltx(module: Any, noisy: Tensor, timestep: Tensor, text: Tensor, mask: Tensor) -> Tensor:
    frames, height, width = noisy.shape[2:]
    output = module(
        noisy.flatten(2).transpose(1, 2),
        text,
        timestep,
        mask,
        num_frames=frames,
        height=height,
        width=width,
        rope_interpolation_scale=(8 / 25, 32, 32),
        return_dict=False,
    )[0]
    return output.transpose(1, 2).reshape(noisy.shape)


def ltx2(module: Any, noisy: Tensor, timestep: Tensor, text: Tensor, mask: Tensor) -> Tensor:
    """The whole class beside some audio, from which the video is isolated."""
    frames, height, width = noisy.shape[2:]
    output = module(
        noisy.flatten(2).transpose(1, 2),
        torch.full((1, 3, module.config.audio_in_channels), 0.7, dtype=noisy.dtype),
        text,
        text.flip(1),
        timestep,
        encoder_attention_mask=mask,
        num_frames=frames,
        height=height,
        width=width,
        audio_num_frames=3,
        isolate_modalities=True,
        return_dict=False,
    )[0]
    return output.transpose(1, 2).reshape(noisy.shape)


def mochi(module: Any, noisy: Tensor, timestep: Tensor, text: Tensor, mask: Tensor) -> Tensor:
    return module(noisy, text, timestep, mask, return_dict=False)[0]


FORWARDS = {
    "wan": wan,
    "wan_5b": wan,
    "skyreels_v2": wan,
    "hunyuan_video": hunyuan,
    "hunyuan_video15": hunyuan15,
    "ltx": ltx,
    "ltx2": ltx2,
    "mochi": mochi,
}
