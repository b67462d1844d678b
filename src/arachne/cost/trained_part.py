"""Which of a model's own parameters are trained, as far as memory depends on it."""

from dataclasses import dataclass
from typing import Literal

BlockPart = Literal["passed", "frozen", "trained"]
"""passed   nothing before it or in it is trained: the backward ends above it, and it keeps nothing
frozen   nothing in it is trained, and the backward goes through it
trained  some of its parameters are trained
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedPart:
    """The trained part of a model of which some parameters are frozen.

    Attributes:
        num_parameters: Those that are trained.
        blocks: Of each transformer block, in the order in which they run.
    """

    num_parameters: int
    blocks: tuple[BlockPart, ...]

    @property
    def passed_share(self) -> float:
        """Share of the blocks that the backward does not reach."""
        return self.blocks.count("passed") / max(1, len(self.blocks))
