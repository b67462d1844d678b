"""Every process group that plans may name, created by all ranks in one canonical order."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist

from arachne.core.blocks import plan_blocks
from arachne.runtime.group_budget import GroupBudget, Ranks, canonical
from arachne.runtime.recorder import Recorder
from arachne.runtime.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """Some ranks that can meet, seen from one of them.

    Attributes:
        ranks: Global ranks, ascending.
        index: This rank's place among them.
        handle: torch's group; None for a rank alone, which meets nobody.
        recorder: Learns of every collective.
        gate: Called before each collective; None lets all pass.
    """

    ranks: tuple[int, ...]
    index: int
    handle: dist.ProcessGroup | None = field(repr=False)
    recorder: Recorder = field(repr=False)
    gate: Callable[[], None] | None = field(default=None, repr=False)

    @property
    def size(self) -> int:
        """Ranks in the group."""
        return len(self.ranks)


class ProcessGroups:
    """The groups of this rank, by their ranks. All ranks construct it at the same moment.

    Groups of size 1 are never created, and the whole world is torch's own group: on GPUs each
    further communicator costs half a gigabyte.

    Args:
        world: This rank's world.
        degrees: Of the launches of plans.
        recorder: Learns of every collective.
        most_per_rank: Groups that a rank is in at most, beside the world's; those of a plan are
            made before it runs, and the least recently used ones go. 0 makes all of them at once.
    """

    def __init__(
        self, world: World, degrees: Sequence[int], recorder: Recorder, *, most_per_rank: int = 0
    ) -> None:
        self._world = world
        self._recorder = recorder
        self._most_per_rank = most_per_rank
        self._budget = GroupBudget(world.size, most_per_rank)
        everyone = tuple(range(world.size))
        of_degree = plan_blocks(world.size, degrees)
        found = {block for blocks in of_degree.values() for block in blocks if len(block) > 1}
        self._of_launches = found
        self._allowed = found - {everyone}
        self._handles: dict[Ranks, dist.ProcessGroup | int | None] = {}
        """Of every group that exists, whether this rank is a member or not."""
        alone = (world.rank,)
        self._groups: dict[Ranks, RankGroup] = {
            alone: RankGroup(ranks=alone, index=0, handle=None, recorder=recorder)
        }
        first = [everyone] if world.size > 1 else []
        if not most_per_rank:
            first += sorted(self._allowed, key=canonical)
        self._make(first)
        self.world = self._groups[everyone]

    @property
    def device(self) -> torch.device:
        """Where the ranks compute."""
        return self._world.device

    @property
    def existing(self) -> tuple[Ranks, ...]:
        """The groups of the whole world, whether this rank is a member or not."""
        return tuple(self._handles)

    @property
    def num_groups(self) -> int:
        """How many there are."""
        return len(self._handles)

    @property
    def most_on_a_rank(self) -> int:
        """Groups that a rank is in at most, now or later."""
        of_rank = Counter(rank for ranks in self._allowed for rank in ranks)
        most = max(of_rank.values(), default=0)
        return min(most, self._most_per_rank or most) + (self._world.size > 1)

    def of(self, ranks: Ranks) -> RankGroup:
        """The group of exactly these ranks, of which this rank is one.

        Raises:
            KeyError: No such group was created; the plan left its bounded set of blocks.
        """
        return self._groups[ranks]

    def prepare(self, needed: Iterable[Ranks]) -> None:
        """Have the groups of a plan; all ranks call it at the same moment with the same ones.

        What one plan needs at once is there, even if that is more than a rank should be in.
        """
        if self._most_per_rank:
            dropped, made = self._budget.take(self._allowed.intersection(needed))
            for ranks in dropped:
                handle = self._handles.pop(ranks)
                if self._groups.pop(ranks, None) is not None:
                    dist.destroy_process_group(cast(dist.ProcessGroup, handle))
            self._make(made)

    def _make(self, wanted: Sequence[Ranks]) -> None:
        for ranks in wanted:
            self._handles[ranks] = handle = _create(ranks, self._world)
            if self._world.rank in ranks:
                assert isinstance(handle, dist.ProcessGroup)
                self._groups[ranks] = RankGroup(
                    ranks=ranks,
                    index=ranks.index(self._world.rank),
                    handle=handle,
                    recorder=self._recorder,
                )
        for ranks in wanted:
            if ranks in self._groups:
                _probe(self._groups[ranks], self.device, sends=ranks in self._of_launches)


def _create(ranks: tuple[int, ...], world: World) -> dist.ProcessGroup | int | None:
    if len(ranks) == world.size:
        return dist.group.WORLD
    return dist.new_group(list(ranks), timeout=timedelta(seconds=world.timeout_s))


def _probe(group: RankGroup, device: torch.device, *, sends: bool) -> None:
    """Sum the ranks once: a group that was created in another order elsewhere sums wrongly.

    Where launches run on it, each also sends to each. NCCL makes the connections of single sends,
    and their buffers, at the first ones of a pair: now, and not within a launch, when memory is
    fullest.
    """
    if group.handle is None:
        return
    total = torch.tensor([group.ranks[group.index]], dtype=torch.int64, device=device)
    dist.all_reduce(total, group=group.handle)
    assert int(total) == sum(group.ranks), f"group {group.ranks} sums to {int(total)}"
    if sends:
        sent = torch.full((group.size,), group.index, dtype=torch.int64, device=device)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=group.handle)
        assert received.tolist() == list(range(group.size)), f"group {group.ranks}: {received}"
