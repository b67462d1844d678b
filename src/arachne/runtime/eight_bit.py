"""AdamW with moments of one byte per element, by bitsandbytes.

Each block of 256 elements has a scale, its largest absolute value; an element is one of 256 levels
of it (Dettmers et al., arXiv 2110.02861). Tensors of fewer than 4096 elements keep float32.
Checkpoints hold the moments as float32, so that other ranks can cut them elsewhere, and a run may
go on with `adamw`. Read back they are rounded once more: a resumed run is close to one that was not
stopped, but not equal.
"""

import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from arachne.core.errors import ConfigError
from arachne.runtime.optimizer_state import Make, StateKinds, TorchState

_BLOCK_SIZE = 256
_PARTS = {"exp_avg": "1", "exp_avg_sq": "2"}
"""What bitsandbytes appends to the names of a moment's bytes, levels and scales."""


def adamw_8bit(dtype: torch.dtype, **options: Any) -> Any:
    """A function that makes the optimizer of some tensors of this type.

    Raises:
        ConfigError: bitsandbytes is not installed, or the type is not float32.
    """
    if dtype != torch.float32:
        raise ConfigError(
            f"optimizer.name 'adamw8bit' updates float32 weights; model.dtype here needs {dtype}; "
            "choose 'adamw', or model.dtype 'float32' or 'bfloat16'"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it uses what torch 2.13 will drop
            from bitsandbytes.optim import AdamW8bit  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigError(
            "optimizer.name 'adamw8bit' needs bitsandbytes, which cannot be imported "
            f"({error}); pip install 'arachne[eight-bit]', or choose 'adamw'"
        ) from error
    return partial(AdamW8bit, **options)


class EightBitState(TorchState):
    """The moments of `AdamW8bit` as if they were AdamW's."""

    @staticmethod
    def kinds(make: Make, what: str, num_dims: int, like: Tensor) -> StateKinds:
        """See `TorchState`; known, since bitsandbytes has other names for them."""
        return StateKinds(arrays=tuple(_PARTS), numbers={"step": 0})

    def array(self, tensor: Tensor, kind: str) -> Tensor:
        """See `TorchState`."""
        from bitsandbytes.functional import (  # pyright: ignore[reportMissingImports]
            dequantize_blockwise,
        )

        state, part = self._state(tensor), _PARTS[kind]
        if not state:
            return torch.zeros_like(tensor).detach().view(-1)
        values = state[f"state{part}"]
        if values.dtype == torch.uint8:
            values = dequantize_blockwise(
                values,
                absmax=state[f"absmax{part}"],
                code=state[f"qmap{part}"],
                blocksize=_BLOCK_SIZE,
            )
        return values.view(-1)

    def put(
        self,
        tensor: Tensor,
        kinds: StateKinds,
        arrays: Mapping[str, Tensor],
        numbers: Mapping[str, float],
    ) -> None:
        """See `TorchState`."""
        from bitsandbytes.functional import (  # pyright: ignore[reportMissingImports]
            quantize_blockwise,
        )

        optimizer: Any = self.optimizer
        place = next(i for i, each in enumerate(self._tensors) if each is tensor)
        optimizer.state[tensor].clear()
        optimizer.init_state(optimizer.param_groups[0], tensor, 0, place)
        state = optimizer.state[tensor]
        state["step"] = int(numbers["step"])
        for kind, part in _PARTS.items():
            values = arrays[kind].view(tensor.shape)
            if state[f"state{part}"].dtype == torch.uint8:
                codes, scales = quantize_blockwise(
                    values, code=state[f"qmap{part}"], blocksize=_BLOCK_SIZE
                )
                state[f"state{part}"], state[f"absmax{part}"] = codes, scales.absmax
            else:
                state[f"state{part}"] = values
