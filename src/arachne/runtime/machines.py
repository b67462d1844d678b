"""Which ranks run on one machine; who starts them may start more on one machine than on another."""

import os
from dataclasses import dataclass
from itertools import accumulate

from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

from arachne.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """The machines of a world; ranks of one are neighbours.

    Attributes:
        sizes: Ranks of each machine, in the order of the ranks.
    """

    sizes: tuple[int, ...]

    def machine_of(self, rank: int) -> int:
        """The machine that a rank runs on, by its place in `sizes`."""
        return next(index for index, end in enumerate(accumulate(self.sizes)) if rank < end)

    def ranks_beside(self, rank: int) -> range:
        """The ranks of a rank's machine, itself among them."""
        machine = self.machine_of(rank)
        first = sum(self.sizes[:machine])
        return range(first, first + self.sizes[machine])

    @property
    def are_alike(self) -> bool:
        """Whether all have equally many ranks."""
        return len(set(self.sizes)) == 1

    @property
    def text(self) -> str:
        """Such as `machines of 4 and 8 ranks`."""
        return f"machines of {' and '.join(map(str, sorted(set(self.sizes))))} ranks"


def found_machines(store: Store, rank: int, world_size: int) -> Machines:
    """The machines, by what LOCAL_RANK and LOCAL_WORLD_SIZE say on each rank, who all call it.

    Where they are not set, all ranks count as one machine's.

    Raises:
        ConfigError: Ranks of a machine are no neighbours.
    """
    place = int(os.environ.get("LOCAL_RANK", rank))
    size = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    store.set(f"machine of rank {rank}", f"{place} {size}")
    sizes: list[int] = []
    while (first := sum(sizes)) < world_size:
        at, count = map(int, store.get(f"machine of rank {first}").split())
        if at != 0 or not 0 < count <= world_size - first:
            raise _no_neighbours(first, at, count)
        sizes.append(count)
    machines = Machines(sizes=tuple(sizes))
    if machines.ranks_beside(rank)[0] + place != rank:
        raise _no_neighbours(rank, place, size)
    return machines


def _no_neighbours(rank: int, place: int, size: int) -> ConfigError:
    return ConfigError(
        f"rank {rank} is LOCAL_RANK {place} of LOCAL_WORLD_SIZE {size}, but ranks of one machine "
        "have to follow each other; number ranks machine by machine, as torchrun does"
    )
