"""Transformer blocks that keep no activations and are computed again in the backward."""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop


def make_recomputable(
    block: nn.Module, is_wanted: Callable[[], bool], *, keeps_on_host: bool = False
) -> None:
    """Let a block's forward be computed again in the backward, whenever `is_wanted` says so.

    Hooks on the block itself run once; what they change is what the block starts from both times.
    The launch that runs the forward has to be the active one until the backward is over. With
    `keeps_on_host` what the block starts from waits in the host's memory meanwhile.
    """
    forward = block.forward

    @functools.wraps(forward)
    def forward_now_and_later(*args: Any, **kwargs: Any) -> Any:
        if not is_wanted():
            return forward(*args, **kwargs)
        # Always the whole block: its collectives are then issued again by all members alike,
        # whatever each of them had to save. Blocks draw no random numbers (`install` checks), and
        # reading the generator's state would stop a GPU.
        waiting = (
            save_on_cpu(pin_memory=torch.cuda.is_available()) if keeps_on_host else nullcontext()
        )
        with set_checkpoint_early_stop(False), waiting:
            return checkpoint(
                forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs
            )

    block.forward = forward_now_and_later
