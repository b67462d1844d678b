"""How a launch runs on its GPUs: what does not change its result, only its time and its memory."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchMode:
    """How a degree is split, and how much of the forward pass is computed twice.

    Attributes:
        ring: Parts of the sequence whose keys and values travel in a ring; a degree is
            `ulysses` × `ring`. Neighbouring ranks form the Ulysses groups.
        recompute_layers: Transformer blocks, the first ones, that keep no activations and are
            computed again in the backward; 0 is none.
    """

    ring: int = 1
    recompute_layers: int = 0

    def __post_init__(self) -> None:
        assert self.ring >= 1, self.ring
        assert self.recompute_layers >= 0, self.recompute_layers

    def ulysses(self, degree: int) -> int:
        """Ranks that share out the heads, of a launch on `degree` ranks."""
        assert degree % self.ring == 0, (degree, self.ring)
        return degree // self.ring


WHOLE = LaunchMode()
"""No ring, nothing computed twice."""
