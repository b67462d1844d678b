"""Attention by a backend that diffusers' dispatch registry knows by name, `sage` or `xformers` say.

Such a backend is tried out before anything runs: what cannot be loaded, has no backward, or gives
something else than torch's attention is refused.

Shape suffixes:
  B batch   N heads   L tokens   H head size
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from arachne.core.errors import ConfigError
from arachne.core.known_keys import choice_text
from arachne.core.units import percent_text

Attend = Callable[[Tensor, Tensor, Tensor, float | None], Tensor]
"""Attention [B, N, L, H] of queries, keys and values of that shape, with a scale."""

_torchs_own: Any = scaled_dot_product_attention
"""As it was when this module was imported."""

_MOST_ERROR = 0.05
"""Of output and gradients against torch's own, norm over norm; *assumption*: kernels of 8 bits stay
below, and a layout that was misread does not."""


def registered_attention(
    name: str, device: torch.device, *, dtype: torch.dtype, head_size: int
) -> Attend:
    """The backend of a name, tried out on heads of this size and type.

    Raises:
        ConfigError: diffusers does not know the name, or the backend cannot train on this device.
    """
    # Only who names a backend waits for diffusers.
    from diffusers.models import attention_dispatch as registry

    known = [backend.value for backend in registry.AttentionBackendName]
    if name not in known:
        raise ConfigError(
            f"model.attention names backend {name!r}, which this diffusers does not know; "
            f"{choice_text(name, known)}"
        )
    backend = registry.AttentionBackendName(name)

    def attend(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        query_BLNH, key_BLNH, value_BLNH = (each.transpose(1, 2) for each in (query, key, value))
        hooked = nn.functional.scaled_dot_product_attention
        # The native ones call torch's function, which is hooked to exchange tokens: that was done.
        nn.functional.scaled_dot_product_attention = _torchs_own
        try:
            mixed_BLNH = registry.dispatch_attention_fn(
                query_BLNH, key_BLNH, value_BLNH, scale=scale, backend=backend
            )
        finally:
            nn.functional.scaled_dot_product_attention = hooked
        return mixed_BLNH.transpose(1, 2)

    try:
        with registry.attention_backend(name):  # checks what it needs, and loads it
            error = _error(attend, device, dtype, head_size)
    except Exception as failure:  # what a missing or broken package raises is its own affair
        said = str(failure).partition("\n")[0]
        raise ConfigError(
            f"model.attention names backend {name!r}, which cannot train {dtype} heads of "
            f"{head_size} on {device.type!r} ({type(failure).__name__}: {said}); use 'auto'"
        ) from failure
    if not error < _MOST_ERROR:
        raise ConfigError(
            f"model.attention names backend {name!r}, whose results are {percent_text(error)} off "
            f"torch's for {dtype} heads of {head_size} on {device.type!r}; use 'auto'"
        )
    return attend


def _error(attend: Attend, device: torch.device, dtype: torch.dtype, head_size: int) -> float:
    """The largest error of output and gradients against torch's, on a few tokens."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(4, 1, 2, 128, head_size, generator=generator).to(device, dtype)

    def results(attention: Callable[[Tensor, Tensor, Tensor], Tensor]) -> list[Tensor]:
        inputs = [tensor.clone().requires_grad_() for tensor in drawn[:3]]
        mixed = attention(*inputs)
        return [mixed.detach(), *torch.autograd.grad(mixed, inputs, drawn[3])]

    found, expected = results(lambda q, k, v: attend(q, k, v, None)), results(_torchs_own)
    pairs = zip(found, expected, strict=True)
    return max(float((a - b).float().norm() / b.float().norm()) for a, b in pairs)
