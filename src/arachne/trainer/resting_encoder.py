"""A frozen encoder that rests in the host's memory between its cascades.

Weights that never change keep their copy on the host: to wake is to copy them to the device, to
rest is to let go of what lies there.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import chain

import torch
from torch import Tensor, nn


def loaded_networks(encoder: object) -> Iterator[nn.Module]:
    """What an encoder, with those that it is made of, has loaded: most load what they run late."""
    if not is_dataclass(encoder):
        return
    held = {each.name: getattr(encoder, each.name) for each in fields(encoder)}
    for value in {**held, **getattr(encoder, "__dict__", {})}.values():
        if isinstance(value, nn.Module):
            yield value
        else:
            yield from loaded_networks(value)


def _weights(network: nn.Module) -> list[Tensor]:
    return list(chain(network.parameters(), network.buffers()))


class RestingEncoder:
    """Moves what an encoder has loaded; it begins at rest.

    Args:
        encoder: Runs on `device` whatever it loads.
        device: Where it works.
    """

    def __init__(self, encoder: object, device: torch.device) -> None:
        self._encoder = encoder
        self._device = device
        self._on_host: dict[nn.Module, list[Tensor]] = {}
        self._is_awake = True
        self.rest()

    def wake(self) -> None:
        """Bring the weights to the device, before it encodes; without the memory nothing moves."""
        if self._is_awake:
            return
        fetched = {
            network: [each.to(self._device, copy=True, non_blocking=True) for each in weights]
            for network, weights in self._on_host.items()
        }
        _put(fetched)
        self._is_awake = True

    def rest(self) -> None:
        """Let go of the weights on the device, after a cascade."""
        if not self._is_awake:
            return
        for network in loaded_networks(self._encoder):
            if network not in self._on_host:
                self._on_host[network] = [self._held(each.data) for each in _weights(network)]
        _put(self._on_host)
        self._is_awake = False

    def _held(self, weights: Tensor) -> Tensor:
        """On the host; from page-locked memory a GPU fetches fastest."""
        on_host = weights.cpu()
        return on_host.pin_memory() if self._device.type == "cuda" else on_host


def _put(weights_of: dict[nn.Module, list[Tensor]]) -> None:
    for network, weights in weights_of.items():
        for held, value in zip(_weights(network), weights, strict=True):
            held.data = value
