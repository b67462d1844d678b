"""What torchrun tells a process that it started. Imports no torch."""

import os


def is_under_torchrun() -> bool:
    """Whether a launcher already described this process as one rank of a world."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def has_agent() -> bool:
    """Whether a process of torchrun keeps this one, and starts it again where it has to."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_restarted() -> bool:
    """Whether torchrun starts these ranks once more, after some of them failed."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def torchrun_id() -> str:
    """The job's name at torchrun (`--rdzv-id`), the same over its restarts; empty if it has none.

    `--standalone` makes one up. Ranks that are started again because a machine joined are told by
    this alone: torchrun does not count that as a restart.
    """
    name = os.environ.get("TORCHELASTIC_RUN_ID", "")
    return "" if name == "none" else name
