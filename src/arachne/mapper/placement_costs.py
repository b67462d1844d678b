"""What the mapper has to know of costs."""

from typing import Protocol

from arachne.core.cascade import Cascade
from arachne.core.launch_mode import LaunchMode


class PlacementCosts(Protocol):
    """Costs of launches on ranks; `cost.CostModel` is one."""

    def launch_s(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        """Seconds of a launch on these ranks."""
        ...

    def mode(self, cascade: Cascade, gpus: tuple[int, ...]) -> LaunchMode:
        """The mode whose seconds `launch_s` gives."""
        ...

    def communicate_s(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        """The part of `launch_s` in which the ranks exchange activations."""
        ...

    def handoff_s(
        self, cascade: Cascade, from_gpus: tuple[int, ...], to_gpus: tuple[int, ...]
    ) -> float:
        """Seconds that bring what encoder cascade `cascade` made to the ranks that train on it."""
        ...
