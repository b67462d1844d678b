"""Which process groups exist while plans come and go, where a rank may be in a few only. No torch.

All ranks count alike, from the same plans in the same order, so that all make and drop the same.
"""

from collections.abc import Collection

Ranks = tuple[int, ...]
"""Global ranks, ascending."""


def canonical(ranks: Ranks) -> tuple[int, Ranks]:
    """Sort key of the one order in which all ranks make groups: the smaller ones first."""
    return len(ranks), ranks


class GroupBudget:
    """The groups that exist, the least recently used first.

    Args:
        world_size: Ranks.
        most_per_rank: Groups that a rank is in at most, but for those that one plan needs at once.
    """

    def __init__(self, world_size: int, most_per_rank: int) -> None:
        self._most_per_rank = most_per_rank
        self._held: dict[Ranks, None] = {}
        self._num_held = [0] * world_size

    def take(self, needed: Collection[Ranks]) -> tuple[list[Ranks], list[Ranks]]:
        """Use some groups together; those to drop first, then those to make, in their order."""
        wanted = sorted(set(needed), key=canonical)
        made = [ranks for ranks in wanted if ranks not in self._held]
        for ranks in wanted:
            self._held[ranks] = self._held.pop(ranks, None)
        for ranks in made:
            self._count(ranks, 1)
        return self._drop_too_many(wanted), made

    def _drop_too_many(self, kept: Collection[Ranks]) -> list[Ranks]:
        dropped: list[Ranks] = []
        for rank, num_held in enumerate(self._num_held):
            num_over = num_held - self._most_per_rank
            if num_over > 0:
                spare = [held for held in self._held if rank in held and held not in kept]
                for ranks in spare[:num_over]:
                    del self._held[ranks]
                    self._count(ranks, -1)
                    dropped.append(ranks)
        return dropped

    def _count(self, ranks: Ranks, change: int) -> None:
        for rank in ranks:
            self._num_held[rank] += change
