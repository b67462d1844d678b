"""Attention to a part of the keys, forward and backward: what ring attention puts together.

A kernel returns the part's own softmax average and the logarithm of its normaliser; with the
logarithm over *all* keys, its backward gives that part's share of the gradients.

    lse = log Σ_k exp(scale · q·k),   out = Σ_k exp(scale · q·k − lse) · v

The kernels for CPU are tested; those for CUDA are written after torch's schemas and have not run.

Shape suffixes:
  B batch   N heads   Q queries   K keys   H head size
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from arachne.core.errors import ConfigError

KernelName = Literal["auto", "flash", "cudnn", "math"]

_aten: Any = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class PartInputs:
    """What attends to what.

    Attributes:
        query: Queries [B, N, Q, H].
        key: Keys of one part of the sequence [B, N, K, H].
        value: Their values [B, N, K, H].
        mask: Which keys count (boolean) or what is added to their scores, [B or 1, 1, 1, K]; None
            for all.
        scale: Factor of the scores.
        is_causal: Whether query i sees only the keys up to i; then K is Q.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    scale: float
    is_causal: bool = False


Forward = Callable[[PartInputs], tuple[Tensor, Tensor]]
"""Output [B, N, Q, H], and lse [B, N, Q, 1] in float32 or wider."""

Backward = Callable[[PartInputs, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""From the gradient of the output, the whole output and the whole lse: gradients of q, k, v."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKernel:
    """One way to compute attention to a part of the keys; no side may be empty."""

    forward: Forward
    backward: Backward


def kernel_named(name: KernelName, query: Tensor, *, is_masked: bool) -> AttentionKernel:
    """The kernel for queries like `query`; `auto` is the fused one that torch has for the device.

    Raises:
        ConfigError: The device has no such kernel, or it cannot do what is asked.
    """
    device = query.device.type
    if name == "math" or (name == "auto" and device == "cpu" and is_masked):
        return MATH
    resolved = "flash" if name == "auto" else name
    kernel = _FUSED.get((device, resolved))
    if kernel is None:
        raise ConfigError(
            f"attention kernel {name!r} does not exist on {device!r}; set model.attention to "
            "'auto' or 'math'"
        )
    if is_masked:
        raise ConfigError(
            f"ring attention with a mask has no {resolved!r} kernel on {device!r}; set "
            "planner.ring = 'none', or model.attention = 'math'"
        )
    if device == "cuda" and (query.element_size() != 2 or query.shape[-1] % 8):
        raise ConfigError(
            f"ring attention with kernel {resolved!r} needs bfloat16 or float16 and heads of a "
            f"multiple of 8; found {query.dtype} and {query.shape[-1]}; set planner.ring = 'none', "
            "or model.attention = 'math'"
        )
    return kernel


def _math_scores(part: PartInputs) -> Tensor:
    wide = torch.promote_types(part.query.dtype, torch.float32)
    scores = part.query.to(wide) @ part.key.to(wide).transpose(-1, -2) * part.scale
    if part.is_causal:
        is_later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(is_later, -torch.inf)
    if part.mask is None:
        return scores
    if part.mask.dtype == torch.bool:
        return scores.masked_fill(~part.mask, -torch.inf)
    return scores + part.mask


def _math_forward(part: PartInputs) -> tuple[Tensor, Tensor]:
    """For a query that may see no key of the part, lse is −inf and the output zero."""
    scores = _math_scores(part)
    top = scores.amax(dim=-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)
    weights = (scores - top).exp()
    total = weights.sum(dim=-1, keepdim=True)
    out = weights @ part.value.to(scores.dtype) / total.masked_fill(total == 0, 1.0)
    return out, top + total.log()


def _math_backward(
    part: PartInputs, gradient: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    weights = (_math_scores(part) - lse).exp()
    query, key, value = (tensor.to(weights.dtype) for tensor in (part.query, part.key, part.value))
    wide = gradient.to(weights.dtype)
    delta = (wide * out.to(weights.dtype)).sum(dim=-1, keepdim=True)
    of_scores = weights * (wide @ value.transpose(-1, -2) - delta) * part.scale
    gradients = (of_scores @ key, of_scores.transpose(-1, -2) @ query)
    of_value = weights.transpose(-1, -2) @ wide
    dtype = part.query.dtype
    return gradients[0].to(dtype), gradients[1].to(dtype), of_value.to(dtype)


MATH = AttentionKernel(forward=_math_forward, backward=_math_backward)
"""Exact on every device and with masks; keeps all scores of a part in memory."""


def _cpu_flash_forward(part: PartInputs) -> tuple[Tensor, Tensor]:
    out, lse = _aten._scaled_dot_product_flash_attention_for_cpu(
        part.query, part.key, part.value, 0.0, part.is_causal, scale=part.scale
    )
    return out, lse.unsqueeze(-1)


def _cpu_flash_backward(
    part: PartInputs, gradient: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return _aten._scaled_dot_product_flash_attention_for_cpu_backward(
        gradient,
        part.query,
        part.key,
        part.value,
        out,
        lse.squeeze(-1),
        0.0,
        part.is_causal,
        scale=part.scale,
    )


def _cuda_flash_forward(part: PartInputs) -> tuple[Tensor, Tensor]:
    out, lse, *_ = _aten._scaled_dot_product_flash_attention(
        part.query, part.key, part.value, 0.0, part.is_causal, scale=part.scale
    )
    return out, lse.unsqueeze(-1)


def _cuda_flash_backward(
    part: PartInputs, gradient: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    no_random_state = torch.zeros(2, dtype=torch.int64, device=out.device)  # there is no dropout
    return _aten._scaled_dot_product_flash_attention_backward(
        gradient,
        part.query,
        part.key,
        part.value,
        out,
        lse.squeeze(-1).contiguous(),
        None,
        None,
        part.query.shape[2],
        part.key.shape[2],
        0.0,
        part.is_causal,
        no_random_state,
        no_random_state[1:],
        scale=part.scale,
    )


def _cudnn_forward(part: PartInputs) -> tuple[Tensor, Tensor]:
    out, lse, *_ = _aten._scaled_dot_product_cudnn_attention(
        part.query, part.key, part.value, None, True, 0.0, part.is_causal, scale=part.scale
    )
    return out, lse.reshape(*out.shape[:3], 1)


def _cudnn_backward(
    part: PartInputs, gradient: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    no_random_state = torch.zeros((), dtype=torch.int64, device=out.device)  # there is no dropout
    return _aten._scaled_dot_product_cudnn_attention_backward(
        gradient,
        part.query,
        part.key,
        part.value,
        out,
        lse.contiguous(),
        no_random_state,
        no_random_state,
        None,
        None,
        None,
        part.query.shape[2],
        part.key.shape[2],
        0.0,
        part.is_causal,
        scale=part.scale,
    )


_FUSED: dict[tuple[str, str], AttentionKernel] = {
    ("cpu", "flash"): AttentionKernel(forward=_cpu_flash_forward, backward=_cpu_flash_backward),
    ("cuda", "flash"): AttentionKernel(forward=_cuda_flash_forward, backward=_cuda_flash_backward),
    ("cuda", "cudnn"): AttentionKernel(forward=_cudnn_forward, backward=_cudnn_backward),
}
