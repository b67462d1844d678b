"""Every process group that plans may name, created once by all ranks in one canonical order."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist

from arachne.core.blocks import plan_blocks
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
    """

    ranks: tuple[int, ...]
    index: int
    handle: dist.ProcessGroup | None = field(repr=False)
    recorder: Recorder = field(repr=False)

    @property
    def size(self) -> int:
        """Ranks in the group."""
        return len(self.ranks)


class ProcessGroups:
    """The groups of this rank, by their ranks. All ranks construct it at the same moment.

    Groups of size 1 are never created, and the whole world is torch's own group: on GPUs each
    further communicator costs half a gigabyte.
    """

    def __init__(self, world: World, degrees: Sequence[int], recorder: Recorder) -> None:
        self._groups: dict[tuple[int, ...], RankGroup] = {}
        self.num_groups = 0
        """Process groups of the whole world, whether this rank is a member or not."""
        alone = (world.rank,)
        self._groups[alone] = RankGroup(ranks=alone, index=0, handle=None, recorder=recorder)
        everyone = tuple(range(world.size))
        of_degree = plan_blocks(world.size, degrees)
        wanted = {block for blocks in of_degree.values() for block in blocks} | {everyone}
        for ranks in sorted(wanted, key=lambda ranks: (len(ranks), ranks)):
            if len(ranks) == 1:
                continue
            handle = _create(ranks, world)
            self.num_groups += 1
            if world.rank in ranks:
                assert isinstance(handle, dist.ProcessGroup)
                self._groups[ranks] = RankGroup(
                    ranks=ranks,
                    index=ranks.index(world.rank),
                    handle=handle,
                    recorder=recorder,
                )
        self.world = self._groups[everyone]
        for group in self._groups.values():
            _probe(group, world.device)

    def of(self, ranks: tuple[int, ...]) -> RankGroup:
        """The group of exactly these ranks, of which this rank is one.

        Raises:
            KeyError: No such group was created; the plan left its bounded set of blocks.
        """
        return self._groups[ranks]


def _create(ranks: tuple[int, ...], world: World) -> dist.ProcessGroup | int | None:
    if len(ranks) == world.size:
        return dist.group.WORLD
    return dist.new_group(list(ranks), timeout=timedelta(seconds=world.timeout_s))


def _probe(group: RankGroup, device: torch.device) -> None:
    """Sum the ranks once: a group that was created in another order elsewhere sums wrongly."""
    if group.handle is None:
        return
    total = torch.tensor([group.ranks[group.index]], dtype=torch.int64, device=device)
    dist.all_reduce(total, group=group.handle)
    assert int(total) == sum(group.ranks), f"group {group.ranks} sums to {int(total)}"
