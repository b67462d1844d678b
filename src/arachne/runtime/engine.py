"""What a step asks of who holds gradients, optimizer state and the parameters that ranks share."""

from typing import Protocol

from torch import Tensor


class Engine(Protocol):
    """Gather, accumulate, reduce, step: the training of one model on all ranks.

    Between `clear_gradients` and `reduce` a rank runs any number of backward passes, or none, and
    the engine adds up what they leave in `.grad`. No rank waits for another before `reduce`. All
    ranks call the methods in one order. `ShardedOptimizer` is one, with whole parameters on every
    rank; one that shares parameters out inside a node would have its ranks run alike launches.
    """

    def settle(self) -> None:
        """Gather: until the parameters of the last update are there, whole, for a forward pass."""
        ...

    def reduce(self) -> None:
        """Sum what all ranks accumulated, after the rank's last launch."""
        ...

    def squared_norm_of_shard(self) -> Tensor:
        """Float64; the sum over all ranks is the squared norm of the whole reduced gradient."""
        ...

    def step_and_share(self, *, lr: float, gradient_scale: float = 1.0) -> None:
        """Update from the reduced gradient, scaled, and start giving all ranks the parameters."""
        ...

    def clear_gradients(self) -> None:
        """Forget what was accumulated."""
        ...
