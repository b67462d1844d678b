"""Attention on one rank: torch's own function, with the kernel that the run prefers asked first.

A preference and no restriction: what a kernel cannot do (masks, say, of a text encoder) is done by
the next in line. A backend of diffusers computes the model's self-attention, where nothing is
masked. The kernels of rings are `attention_kernels`' affair.
"""

import inspect
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor
from torch.nn import attention as torch_attention
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from arachne.core.errors import ConfigError
from arachne.runtime.attention_kernels import KernelName
from arachne.runtime.registry_attention import Attend, registered_attention

AttentionName = Literal["auto", "cudnn", "flash", "flash3", "math"]

_CUDNN, _FLASH, _EFFICIENT, _MATH = (
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
)
_ORDERS: dict[str, tuple[SDPBackend, ...]] = {
    "cudnn": (_CUDNN, _FLASH, _EFFICIENT, _MATH),
    "flash": (_FLASH, _EFFICIENT, _MATH),
    "flash3": (_FLASH, _EFFICIENT, _MATH),
    "math": (_MATH,),
}
_HOPPER = 9
"""Major compute capability on which cuDNN was reported at 1.7 to 2.3 times the default kernel."""

_RANKED: dict[str, Any] = (
    {"set_priority": True} if "set_priority" in inspect.signature(sdpa_kernel).parameters else {}
)
"""How this torch is told that an order of kernels is one; early ones only take the set."""

_torchs_own = scaled_dot_product_attention
"""As it was when this module was imported."""

_preferred: tuple[SDPBackend, ...] = ()
"""Of this process; () lets torch choose."""

_registered: Attend | None = None
"""Of this process: the backend of diffusers that it named."""

REGISTRY = "diffusers:"
"""What the names of diffusers' backends begin with."""


def prefer_kernel(
    name: str, device: torch.device, *, dtype: torch.dtype = torch.float32, head_size: int = 64
) -> KernelName:
    """From now on this process asks this kernel first; the name of the one that rings shall use.

    `auto` is cuDNN's on GPUs of the Hopper generation (where this torch can rank kernels), and
    torch's own choice elsewhere. `diffusers:` before a name means the backend that diffusers'
    registry has under it, tried out on heads of that size and type; rings then use `auto`.

    Raises:
        ConfigError: The device, this torch or this diffusers does not have it.
    """
    global _preferred, _registered
    if name.startswith(REGISTRY):
        backend = name.removeprefix(REGISTRY)
        _registered = registered_attention(backend, device, dtype=dtype, head_size=head_size)
        _preferred = _order("auto", device)
        return "auto"
    assert name in get_args(AttentionName), name
    _preferred, _registered = _order(cast(AttentionName, name), device), None
    return "flash" if name == "flash3" else cast(KernelName, name)


def ring_note(name: str, device: torch.device) -> str:
    """What rings compute with where it is not what whole attention asks first; empty where it is.

    Rings call torch's flash operations, which are FlashAttention 2's until `flash3` puts others in
    their place, or cuDNN's if those are named.
    """
    if device.type != "cuda":
        return ""
    if name.startswith(REGISTRY):
        return f"rings compute with torch's FlashAttention 2, not with {name!r}"
    if name == "auto" and _order(name, device):
        return (
            "rings compute with torch's FlashAttention 2, other attention with cuDNN; "
            "model.attention = 'cudnn' or 'flash3' has both compute with that"
        )
    return ""


def _order(name: AttentionName, device: torch.device) -> tuple[SDPBackend, ...]:
    is_cuda = device.type == "cuda"
    if name == "auto":
        is_hopper = is_cuda and torch.cuda.get_device_capability(device)[0] == _HOPPER
        return _ORDERS["cudnn"] if is_hopper and _RANKED else ()
    if name in ("cudnn", "flash3") and not is_cuda:
        raise ConfigError(
            f"model.attention is {name!r}, and it needs an NVIDIA GPU; found {device.type!r}; "
            "use 'auto'"
        )
    if name == "cudnn" and not _RANKED:
        raise ConfigError(
            f"model.attention is 'cudnn', and torch {torch.__version__} cannot put a kernel "
            "first; use 'auto', or a torch that can (2.7)"
        )
    if name == "flash3":
        _activate_flash3()
    return _ORDERS[name]


def _activate_flash3() -> None:
    activate = getattr(torch_attention, "activate_flash_attention_impl", None)
    if activate is None:
        raise ConfigError(
            f"model.attention is 'flash3', and torch {torch.__version__} cannot load it; use "
            "torch 2.11 or newer, or 'auto'"
        )
    try:
        activate("FA3")
    except Exception as error:  # what a missing or broken package raises is its own affair
        raise ConfigError(
            f"model.attention is 'flash3', and it could not be loaded ({error}); install "
            "FlashAttention 3 (flash_attn_interface), or use 'auto'"
        ) from error


def local_attention(*args: Any, **kwargs: Any) -> Tensor:
    """torch's `scaled_dot_product_attention` with this process's order of kernels."""
    if not _preferred:
        return _torchs_own(*args, **kwargs)
    # Without a rank, an order only says which kernels are allowed: torch asks them in its own.
    with sdpa_kernel(list(_preferred), **_RANKED):
        return _torchs_own(*args, **kwargs)


def self_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, scale: float | None
) -> Tensor:
    """Of a model, over whole sequences: by the backend of diffusers, if one is named and nothing is
    masked."""
    if _registered is None or mask is not None:
        return local_attention(query, key, value, mask, scale=scale)
    return _registered(query, key, value, scale)
