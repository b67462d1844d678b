"""Launches in which a rank runs out of memory: given up together, or the end of the run.

Before a launch's first collective its members tell each other whether all of them came so far. If
one did not, all give the launch up, and go on with the next: nobody waits, and nothing was added to
a gradient. Later the others wait inside collectives of the launch that this rank cannot enter any
more, so that nothing is left but to end the run.
"""

from dataclasses import replace

import torch

from arachne.runtime import collectives
from arachne.runtime.process_groups import RankGroup

_WORDS = (
    "can't allocate memory",  # torch's allocator of host memory, on Linux
    "not enough memory",  # the same elsewhere
    "CUDA error: out of memory",  # CUDA itself: pinned memory, streams, a kernel's own memory
    "CUBLAS_STATUS_ALLOC_FAILED",
    "'out of memory'",  # NCCL: Cuda failure 2 'out of memory'
    "Failed to CUDA calloc",  # NCCL too
    "Failed to CUDA host alloc",
)
"""What is said in a plain RuntimeError where it is not torch's allocator of the device."""


class GivenUpError(Exception):
    """A member of the launch ran out of memory before its first collective."""


class StrandedError(Exception):
    """This rank ran out of memory in a launch whose other members wait for it.

    Attributes:
        launch: Index of the launch in the plan.
        num_entered: Collectives of the launch that the rank had entered.
    """

    def __init__(self, launch: int, num_entered: int) -> None:
        super().__init__(f"out of memory in launch {launch}, in collective {num_entered}")
        self.launch = launch
        self.num_entered = num_entered


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device or the host has no memory left."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


class LaunchGate:
    """Lets a launch's members into its first collective, or none of them.

    It costs one collective of one number; on a GPU the host waits for its result.

    Args:
        group: The launch's ranks.
        device: Where they compute.
    """

    def __init__(self, group: RankGroup, device: torch.device) -> None:
        self._outside = group
        self._ballot = torch.zeros(1, dtype=torch.int64, device=device)
        self.is_open = False
        self.num_entered = 0
        """Collectives of the launch that this rank entered, this one not counted."""
        self.group = group if group.size == 1 else replace(group, gate=self.enter)
        """The launch's ranks; their first collective opens the gate."""

    def enter(self) -> None:
        """Called before each collective of the launch.

        Raises:
            GivenUpError: Another member refused.
        """
        if not self.is_open and self._is_refused():
            raise GivenUpError
        self.is_open = True
        self.num_entered += 1

    def refuse(self) -> None:
        """This rank cannot take part; the others learn of it at their first collective."""
        assert not self.is_open, "the others wait inside"
        if self._outside.size > 1:
            self._ballot.fill_(1)
            self._is_refused()

    def _is_refused(self) -> bool:
        collectives.all_reduce_max(self._ballot, self._outside)
        return bool(self._ballot.item())
