"""A frozen linear layer whose weights take a byte each, as float8 with one scale for each output.

    y = (x · Qᵀ) · s + b,   Q = W / s as float8 (e4m3),   s = max |W| of a row / 448

The product is taken in the type of x. Source: the format and its largest number 448, Micikevicius
et al. 2022 (arXiv 2209.05433).

Shape suffixes:
  O outputs   I inputs
"""

from typing import Any

import torch
from torch import Tensor, nn

_FLOAT8 = torch.float8_e4m3fn
_LARGEST = torch.finfo(_FLOAT8).max


class Float8Linear(nn.Linear):
    """Computes nearly what a linear layer does; only its input gets a gradient."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=False, device="meta")
        weight_OI = layer.weight.detach()
        scale_O = weight_OI.abs().amax(1).double() / _LARGEST
        scale_O = scale_O.where(scale_O > 0.0, torch.ones_like(scale_O))
        stored_OI = (weight_OI / scale_O[:, None]).to(_FLOAT8)
        self.weight = nn.Parameter(stored_OI, requires_grad=False)
        self.scale = nn.Parameter(scale_O.to(layer.weight.dtype), requires_grad=False)
        self.bias = layer.bias

    def forward(self, input: Tensor) -> Tensor:
        """The outputs, in the type of the inputs."""
        found = _Product.apply(input, self.weight, self.scale)
        return found if self.bias is None else found + self.bias


class _Product(torch.autograd.Function):
    """Keeps the byte of each weight for its backward, and no wider copy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stored_OI: Tensor, scale_O: Tensor) -> Tensor:
        ctx.save_for_backward(stored_OI, scale_O)
        return (x @ stored_OI.to(x.dtype).t()) * scale_O

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        stored_OI, scale_O = ctx.saved_tensors
        gradient = gradients[0]
        return (gradient * scale_O) @ stored_OI.to(gradient.dtype), None, None
