"""Where the launches of a step add up their gradients: one flat buffer for each bucket.

A backward pass hands each parameter's gradient over as soon as it is whole; the clips of one launch
are one batch, so they were summed by then. Whatever the buffer's type, ranks are summed in float32
or wider.
"""

from collections.abc import Callable
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

GradientStorage = Literal["float32", "bfloat16", "host"]


class GradientBuffer(Protocol):
    """Sums of gradients, as elements of one flat tensor."""

    def receive(self, parameter: nn.Parameter, start: int) -> None:
        """Let backward passes add the gradient of `parameter` to the elements from `start` on."""
        ...

    def summed(self) -> Tensor:
        """All elements on the device, float32 or wider; valid until the next backward."""
        ...

    def part(self, start: int, stop: int) -> Tensor:
        """Elements [start, stop) on the device, in the type in which they are kept."""
        ...

    def clear(self) -> None:
        """Forget what was added."""
        ...


def gradient_buffer(flat: Tensor, storage: GradientStorage) -> GradientBuffer:
    """An empty buffer for the gradients of the parameters in `flat`."""
    return HostBuffer(flat) if storage == "host" else DeviceBuffer(flat, storage)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32, or wider where the parameters are."""
    return torch.promote_types(dtype, torch.float32)


class DeviceBuffer:
    """On the parameters' device, in float32 or wider, or in bfloat16.

    In bfloat16 each launch's gradient is added in float32 and the sum rounded to nearest. After n
    launches of one size the sum may be off by n·2⁻⁹ of itself at worst; a launch whose gradient is
    below 2⁻⁹ of the sum so far is lost.
    """

    def __init__(self, flat: Tensor, storage: Literal["float32", "bfloat16"]) -> None:
        self._wide = wide_dtype(flat.dtype)
        dtype = torch.bfloat16 if storage == "bfloat16" else self._wide
        self._sums = torch.zeros_like(flat, dtype=dtype)

    def receive(self, parameter: nn.Parameter, start: int) -> None:
        """See `GradientBuffer`; in place where the types agree, else in a hook."""
        view = self._sums[start : start + parameter.numel()].view(parameter.shape)
        if parameter.dtype == view.dtype:
            parameter.grad = view
        else:
            _on_gradient(parameter, view.add_)

    def summed(self) -> Tensor:
        """See `GradientBuffer`."""
        return self._sums.to(self._wide)

    def part(self, start: int, stop: int) -> Tensor:
        """See `GradientBuffer`."""
        return self._sums[start:stop]

    def clear(self) -> None:
        """See `GradientBuffer`."""
        self._sums.zero_()


class HostBuffer:
    """In the host's memory, float32 or wider; page-locked where the parameters are on a GPU.

    What is there of a parameter comes to the device, the gradient is added, and the sum goes back:
    8 bytes over the bus for each element and launch, 4 for the step's first. All of it is in the
    order of the device's stream, so that the host never waits.
    """

    def __init__(self, flat: Tensor) -> None:
        self._device = flat.device
        self._sums = torch.zeros(
            flat.numel(),
            dtype=wide_dtype(flat.dtype),
            pin_memory=flat.device.type == "cuda",
        )
        self._arrived: dict[int, int] = {}
        """End by start of every parameter that has a gradient; the rest is zero."""

    def receive(self, parameter: nn.Parameter, start: int) -> None:
        """See `GradientBuffer`."""
        stop = start + parameter.numel()
        if start == stop:
            return  # the next one starts there too
        view = self._sums[start:stop].view(parameter.shape)

        def add(gradient: Tensor) -> None:
            total = gradient.to(view.dtype)
            if start in self._arrived:
                total = total + view.to(self._device, non_blocking=True)
            view.copy_(total, non_blocking=True)
            self._arrived[start] = stop

        _on_gradient(parameter, add)

    def summed(self) -> Tensor:
        """See `GradientBuffer`."""
        return self.part(0, self._sums.numel())

    def part(self, start: int, stop: int) -> Tensor:
        """See `GradientBuffer`."""
        part = torch.zeros(stop - start, dtype=self._sums.dtype, device=self._device)
        for first, last in self._arrived.items():
            low, high = max(first, start), min(last, stop)
            if low < high:
                part[low - start : high - start].copy_(self._sums[low:high], non_blocking=True)
        return part

    def clear(self) -> None:
        """See `GradientBuffer`; what lies there is overwritten by the next gradient."""
        self._arrived.clear()


def _on_gradient(parameter: nn.Parameter, take: Callable[[Tensor], object]) -> None:
    """Hand each backward's gradient to `take`, and keep none."""

    def hand_over(changed: Tensor) -> None:
        assert changed.grad is not None
        try:
            take(changed.grad)
        finally:  # without memory for it, the launch is given up; the next one may add to nothing
            changed.grad = None

    parameter.register_post_accumulate_grad_hook(hand_over)
