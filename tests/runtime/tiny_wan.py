"""A tiny Wan in float64, its data, and the loss that all exactness tests share."""

import contextlib
from collections.abc import Iterator

import torch
from diffusers import WanTransformer3DModel  # noqa: F401  imported once, before ranks are forked
from torch import Tensor

from arachne.core.batch import Batch
from arachne.core.families import WAN
from arachne.core.model_shape import ModelShape
from arachne.models.diffusers_module import VideoTransformer, build_transformer


@contextlib.contextmanager
def float64_everywhere() -> Iterator[None]:
    """Wan casts norms and modulation to float32 itself; let these islands be float64 too."""
    kept = torch.Tensor.float
    torch.Tensor.float = torch.Tensor.double  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        torch.Tensor.float = kept


def tiny_wan(num_heads: int = 3, dtype: torch.dtype = torch.float64) -> VideoTransformer:
    shape = ModelShape(
        family="wan",
        num_layers=2,
        num_heads=num_heads,
        head_size=12,
        ffn_size=24,
        latent_channels=4,
        text_size=8,
        text_tokens=3,
        freq_size=16,
    )
    return build_transformer(shape, dtype=dtype, seed=0)


def clip_tensors(batch: Batch, slot: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Latents, sigma, text and target of one clip, from its slot alone."""
    generator = torch.Generator().manual_seed(slot)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype)

    grid = WAN.geometry.latent_grid(batch.clips[slot].bucket)
    sigma = torch.rand(1, generator=generator, dtype=torch.float64).to(dtype)
    return normal(1, 4, *grid), sigma, normal(1, 3, 8), normal(1, 4, *grid)


def loss_of(
    model: VideoTransformer, batch: Batch, slots: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    """The slots' share of the batch's mean loss, as one stacked forward pass."""
    columns = zip(*(clip_tensors(batch, slot, dtype) for slot in slots), strict=True)
    latents, sigma, text, target = (torch.cat(column) for column in columns)
    error = model.predict(latents, sigma, text) - target
    return error.pow(2).mean(dim=(1, 2, 3, 4)).sum() / len(batch.clips)


def gradient_of_one_process(
    model: VideoTransformer, batch: Batch, dtype: torch.dtype
) -> dict[str, Tensor]:
    """The reference: every clip by itself, no plan, no groups."""
    parameters = dict(model.module.named_parameters())
    loss = torch.stack([loss_of(model, batch, (s,), dtype) for s in range(len(batch.clips))]).sum()
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    return dict(zip(parameters, gradients, strict=True))
