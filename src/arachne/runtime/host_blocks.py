"""Blocks whose frozen weights wait in the host's memory, and come to the device when they run.

A block that is swapped fetches its weights before its forward, and lets them go after it. It has to
be one that is computed again in the backward: then the graph keeps no weights, and they are fetched
once more.
"""

import functools
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from arachne.core.sequence_layout import SequenceLayout


def move_to_device(
    module: nn.Module, layout: SequenceLayout, device: torch.device, *, swapped_blocks: int = 0
) -> None:
    """Move a model to a device, but for the frozen weights of its first `swapped_blocks` blocks.

    Called before `install`, whose recomputation has to enclose the fetching. What is trained always
    lies on the device.
    """
    blocks = [part for name, part in module.named_modules() if re.fullmatch(layout.blocks, name)]
    on_host = [
        (block, [_page_locked(each.data, device) for each in _frozen(block)])
        for block in blocks[:swapped_blocks]
    ]
    for block, _ in on_host:
        for parameter in _frozen(block):
            parameter.data = parameter.data.new_empty(0)
    module.to(device)
    for block, weights in on_host:
        _swap(block, weights, device)


def _frozen(block: nn.Module) -> Iterator[nn.Parameter]:
    return (each for each in block.parameters() if not each.requires_grad)


def _page_locked(weights: Tensor, device: torch.device) -> Tensor:
    """A copy that a GPU can fetch while it computes."""
    return weights.pin_memory() if device.type == "cuda" else weights


def _swap(block: nn.Module, on_host: list[Tensor], device: torch.device) -> None:
    parameters = list(_frozen(block))

    def put(values: list[Tensor]) -> None:
        for parameter, value in zip(parameters, values, strict=True):
            parameter.data = value

    forward = block.forward

    @functools.wraps(forward)
    def forward_with_weights(*args: Any, **kwargs: Any) -> Any:
        put([each.to(device, copy=True, non_blocking=True) for each in on_host])
        try:
            return forward(*args, **kwargs)
        finally:
            put(on_host)

    put(on_host)
    block.forward = forward_with_weights
