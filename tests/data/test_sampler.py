import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arachne.core.errors import DataError
from arachne.data.sampler import batch_indices, epoch_order

ITEMS = st.integers(1, 60)
SEEDS = st.integers(0, 2**63)
GOLDEN = [3, 1, 6, 2, 5, 4, 0, 7]


@given(seed=SEEDS, num_items=ITEMS, batch_size=st.integers(1, 70), num_epochs=st.integers(1, 4))
def test_every_epoch_covers_each_clip_exactly_once(
    seed: int, num_items: int, batch_size: int, num_epochs: int
) -> None:
    steps = -(-num_epochs * num_items // batch_size)
    stream = np.concatenate(
        [batch_indices(seed, step, num_items, batch_size) for step in range(steps)]
    )
    for epoch in range(num_epochs):
        counted = Counter(stream[epoch * num_items : (epoch + 1) * num_items].tolist())
        assert counted == dict.fromkeys(range(num_items), 1)


@given(seed=SEEDS, step=st.integers(0, 10**9), num_items=ITEMS, batch_size=st.integers(1, 70))
def test_a_batch_is_the_same_whenever_it_is_asked_for(
    seed: int, step: int, num_items: int, batch_size: int
) -> None:
    first = batch_indices(seed, step, num_items, batch_size)
    epoch_order.cache_clear()
    assert first.tolist() == batch_indices(seed, step, num_items, batch_size).tolist()


@given(seed=SEEDS, num_items=ITEMS, step=st.integers(0, 50))
def test_a_larger_batch_is_the_same_stream_cut_otherwise(
    seed: int, num_items: int, step: int
) -> None:
    halves = [batch_indices(seed, 2 * step + k, num_items, 4) for k in range(2)]
    assert np.concatenate(halves).tolist() == batch_indices(seed, step, num_items, 8).tolist()


def test_seeds_and_epochs_have_orders_of_their_own() -> None:
    orders = {tuple(epoch_order(seed, epoch, 30)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_the_order_is_the_same_in_every_process_and_version() -> None:
    assert epoch_order(7, 1, 8).tolist() == GOLDEN
    code = "from arachne.data.sampler import epoch_order; print(epoch_order(7, 1, 8).tolist())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(GOLDEN)


def test_one_clip_and_fewer_clips_than_a_batch_train() -> None:
    assert batch_indices(0, 5, 1, 3).tolist() == [0, 0, 0]
    assert Counter(batch_indices(0, 0, 3, 6).tolist()) == {0: 2, 1: 2, 2: 2}


def test_no_clip_at_all_is_refused() -> None:
    with pytest.raises(DataError, match="no clip is usable"):
        batch_indices(0, 0, 0, 2)
