"""Ranks that meet before an error ends them: all of them raise it, or none does."""

from collections.abc import Callable
from typing import TypeVar, cast

import torch

from arachne.core import errors
from arachne.core.errors import ArachneError, CheckpointError
from arachne.core.refused_write import fix_of, refusal_at
from arachne.runtime import collectives
from arachne.runtime.process_groups import RankGroup
from arachne.runtime.world import World

T = TypeVar("T")


def do_together(world: World, group: RankGroup, action: Callable[[], T]) -> T:
    """What each rank's own `action` gives; if one fails on any rank, every rank raises that error.

    All ranks of the world call it at the same moment, `group` being the whole world.

    Raises:
        ArachneError: The error of the lowest rank that failed; an `OSError` becomes a
            `CheckpointError`.
    """
    failure: ArachneError | None = None
    result: T | None = None
    try:
        result = action()
    except ArachneError as error:
        failure = error
    except OSError as error:
        failure = CheckpointError(f"the disk cannot be used: {refusal_at(error)}; {fix_of(error)}")
    if failure is not None:
        world.store.set(f"failure/{world.rank}", f"{type(failure).__name__}:{failure}")
    # The lowest rank that failed wins, since the largest ballot does.
    ballot = 0 if failure is None else world.size - world.rank
    highest = torch.tensor([ballot], dtype=torch.int64, device=world.device)
    collectives.all_reduce_max(highest, group)
    if not int(highest):
        return cast(T, result)
    culprit = world.size - int(highest)
    name, _, message = world.store.get(f"failure/{culprit}").decode().partition(":")
    # Nobody may fail again, and write another message, before all have read this one.
    collectives.all_reduce_max(highest, group)
    raise getattr(errors, name)(message) from failure


def all_agree(world: World, group: RankGroup, is_true: bool) -> bool:
    """Whether something is true on every rank; all ranks of the world call it together."""
    return largest(world, group, int(not is_true)) == 0


def total(world: World, group: RankGroup, number: int) -> int:
    """The sum of all ranks' numbers; all ranks of the world call it together."""
    numbers = torch.tensor([number], dtype=torch.int64, device=world.device)
    collectives.all_reduce_sum(numbers, group)
    return int(numbers)


def largest(world: World, group: RankGroup, number: int) -> int:
    """The largest of all ranks' numbers; all ranks of the world call it together."""
    numbers = torch.tensor([number], dtype=torch.int64, device=world.device)
    collectives.all_reduce_max(numbers, group)
    return int(numbers)
