"""Ranks of one attempt agree on its name, whatever earlier attempts left in the store."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from arachne.core.errors import LostRankError
from arachne.runtime.meeting import attempt_name


def met(store: dist.Store, size: int) -> set[str]:
    with ThreadPoolExecutor(size) as pool:
        return set(pool.map(lambda rank: attempt_name(store, rank, size, 20.0), range(size)))


@pytest.mark.parametrize("sizes", [(3, 2), (2, 3), (1, 1)])
def test_each_attempt_has_one_name_of_its_own_on_smaller_and_larger_worlds(sizes):
    store = dist.HashStore()
    names = [met(store, size) for size in sizes]
    assert [len(found) for found in names] == [1, 1]
    assert names[0] != names[1]


def test_a_rank_that_is_gone_is_not_taken_for_the_one_that_comes():
    store = dist.HashStore()
    store.set("hello/1", "of a rank that was killed while it waited")
    store.set("hello/2", "of another one")
    assert len(met(store, 3)) == 1


def test_a_rank_that_does_not_come_is_named():
    with pytest.raises(LostRankError, match=r"ranks \[1, 2\] of 3 did not come"):
        attempt_name(dist.HashStore(), 0, 3, 0.05)
