"""Which clips a step trains: a function of (seed, step) alone."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from arachne.core.errors import DataError


def batch_indices(seed: int, step: int, num_items: int, batch_size: int) -> NDArray[np.int64]:
    """The items [batch_size] of one step's global batch.

    The epochs' permutations, one after the other, are one endless stream; step k takes its items
    [k * batch_size, (k + 1) * batch_size). So no item is ever dropped, a batch may hold the end of
    one epoch and the start of the next, and where a batch is larger than the dataset an item comes
    up several times in it.

    Raises:
        DataError: There are no items.
    """
    if num_items < 1:
        raise DataError("no clip is usable; `arachne inspect` lists why each was rejected")
    assert step >= 0, step
    assert batch_size >= 1, batch_size
    positions = np.arange(step * batch_size, (step + 1) * batch_size, dtype=np.int64)
    epochs, offsets = np.divmod(positions, num_items)
    indices = np.empty(batch_size, dtype=np.int64)
    for epoch in np.unique(epochs):
        chosen = epochs == epoch
        indices[chosen] = epoch_order(seed, int(epoch), num_items)[offsets[chosen]]
    return indices


@lru_cache(maxsize=4)
def epoch_order(seed: int, epoch: int, num_items: int) -> NDArray[np.int64]:
    """The order [num_items] of one epoch, read-only: every item exactly once.

    Sorts raw Philox words instead of calling `Generator.permutation`, because numpy keeps the
    words the same for ever and the permutation only until its next version.
    """
    words = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)).random_raw(num_items)
    order = np.argsort(words, kind="stable").astype(np.int64)
    order.flags.writeable = False
    return order
