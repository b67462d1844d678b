"""What an optimizer remembers, as arrays and numbers that do not depend on the ranks.

An optimizer keeps, for each tensor, arrays of the tensor's own shape (moments) and numbers (a count
of steps). The arrays are cut with the parameters; the numbers are the same for all of them. Which
there are is seen by running the optimizer on a few elements.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from arachne.core.errors import ConfigError
from arachne.runtime.gradient_buffers import wide_dtype

Make = Callable[..., torch.optim.Optimizer]
"""An optimizer of a sequence of tensors; its learning rate is set before each step."""

_PROBE_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StateKinds:
    """What an optimizer remembers of a tensor with some number of dimensions.

    Attributes:
        arrays: Names of arrays of the tensor's shape, sorted.
        numbers: An example of every number, by its name.
    """

    arrays: tuple[str, ...]
    numbers: Mapping[str, Any]


def state_kinds(make: Make, what: str, num_dims: int, like: Tensor) -> StateKinds:
    """Run an optimizer on two small tensors, of the type and device of `like`.

    Raises:
        ConfigError: It cannot be made or run, keeps what no checkpoint here can hold, or numbers
            that depend on the gradients. `what` names it.
    """
    generator = torch.Generator().manual_seed(0)

    def random() -> Tensor:
        return torch.randn((3,) * num_dims, generator=generator).to(like)

    tensors = [random().requires_grad_() for _ in range(2)]
    try:
        optimizer = make(tensors)
        groups = [_without_lr(group) for group in optimizer.param_groups]
        for _ in range(_PROBE_STEPS):
            for tensor in tensors:
                tensor.grad = random()
            optimizer.step()
    except Exception as error:  # whatever a class that we do not know may raise
        raise ConfigError(
            f"{what} cannot be used: {type(error).__name__}: {error}; check optimizer.options, or "
            "choose another"
        ) from error
    if groups != [_without_lr(group) for group in optimizer.param_groups]:
        raise ConfigError(f"{what} changes its own settings, which no checkpoint holds; {_CHOOSE}")
    first, second = (_kinds(what, tensor, optimizer.state[tensor]) for tensor in tensors)
    if {k: float(v) for k, v in first.numbers.items()} != {
        k: float(v) for k, v in second.numbers.items()
    }:
        raise ConfigError(
            f"{what} keeps a number for each tensor that depends on its gradients, which ranks "
            f"that share tensors cannot; {_CHOOSE}"
        )
    return first


_CHOOSE = "choose another optimizer"
_MOST_NUMBER = torch.finfo(torch.float32).max


def _without_lr(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name not in ("lr", "params")}


def _kinds(what: str, tensor: Tensor, state: Mapping[str, Any]) -> StateKinds:
    arrays: list[str] = []
    numbers: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, Tensor) and value.shape == tensor.shape:
            arrays.append(name)
        elif isinstance(value, int | float) or (isinstance(value, Tensor) and value.ndim == 0):
            if not abs(float(value)) <= _MOST_NUMBER:
                raise ConfigError(
                    f"{what} keeps {name!r}, which is {float(value)}; checkpoints hold numbers up "
                    f"to {_MOST_NUMBER:.2g}, so {_CHOOSE}"
                )
            numbers[name] = value
        elif value is not None:
            found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ConfigError(
                f"{what} keeps {name!r} of shape {found} for a parameter of shape "
                f"{tuple(tensor.shape)}; checkpoints hold one element for each of the parameter's, "
                f"so {_CHOOSE}"
            )
    return StateKinds(arrays=tuple(sorted(arrays)), numbers=numbers)


class TorchState:
    """An optimizer of torch's kind over the tensors that a rank owns; it may own none."""

    def __init__(self, make: Make, tensors: Sequence[Tensor]) -> None:
        self._make = make
        self._tensors = tensors
        self.optimizer = make(tensors) if tensors else None

    @staticmethod
    def kinds(make: Make, what: str, num_dims: int, like: Tensor) -> StateKinds:
        """What it remembers of a tensor; see `state_kinds`."""
        return state_kinds(make, what, num_dims, like)

    def step(self, lr: float) -> None:
        """Update the tensors by their gradients."""
        if self.optimizer is None:
            return
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()

    def array(self, tensor: Tensor, kind: str) -> Tensor:
        """An array of one tensor, flattened; zeros before the first step.

        Raises:
            ConfigError: It is no array of numbers as they are, but of codes for them.
        """
        value = self._state(tensor).get(kind)
        if value is None:
            return torch.zeros_like(tensor).detach().view(-1)
        if not value.is_floating_point():
            raise ConfigError(
                f"optimizer {type(self.optimizer).__name__} keeps {kind} as {value.dtype}, which "
                f"checkpoints cannot hold; use optimizer.name 'adamw8bit', or {_CHOOSE}"
            )
        return value.detach().to(wide_dtype(value.dtype)).view(-1)

    def number(self, tensor: Tensor, kind: str) -> float:
        """A number; 0 before the first step."""
        return float(self._state(tensor).get(kind, 0.0))

    def num_bytes(self, tensor: Tensor) -> int:
        """What it holds of one tensor now; nothing before the first step."""
        return sum(v.nbytes for v in self._state(tensor).values() if isinstance(v, Tensor))

    def forget(self) -> None:
        """Be as before the first step."""
        self.optimizer = self._make(self._tensors) if self._tensors else None

    def put(
        self,
        tensor: Tensor,
        kinds: StateKinds,
        arrays: Mapping[str, Tensor],
        numbers: Mapping[str, float],
    ) -> None:
        """Remember flat arrays and numbers of one tensor, of the kinds that it has."""
        assert self.optimizer is not None
        state: dict[str, Any] = {
            name: _as(example, numbers[name]) for name, example in kinds.numbers.items()
        }
        for name in kinds.arrays:
            state[name] = arrays[name].view(tensor.shape)
        self.optimizer.state[tensor] = state

    def _state(self, tensor: Tensor) -> Mapping[str, Any]:
        return self.optimizer.state.get(tensor, {}) if self.optimizer is not None else {}


def _as(example: Any, value: float) -> Any:
    """A number of the example's type, where the example is."""
    if isinstance(example, Tensor):
        return torch.full_like(example, value)
    return type(example)(value)
