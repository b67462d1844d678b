import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arachne.data.loader import ClipLoader


def test_items_are_read_ahead_and_taken() -> None:
    with ClipLoader(lambda item: item * 10, most=4) as loader:
        loader.prefetch(range(8))
        assert [loader.take(item) for item in range(8)] == [item * 10 for item in range(8)]


def test_no_more_than_the_bound_is_held() -> None:
    read: list[int] = []
    with ClipLoader(lambda item: read.append(item), most=3) as loader:
        loader.prefetch(range(10))
        _wait_until(lambda: len(read) == 3)
        time.sleep(0.05)
        assert read == [0, 1, 2]
        loader.take(0)
        _wait_until(lambda: len(read) == 4)


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    most=st.integers(1, 20),
    data=st.data(),
)
def test_items_that_wait_take_up_no_more_than_the_bound_or_are_one(sizes, most, data) -> None:
    held: set[int] = set()
    wanted: list[int] = []
    worst: list[int] = []

    def read(item: int) -> int:
        held.add(item)
        waiting = held - set(wanted)
        if len(waiting) > 1:
            worst.append(sum(sizes[each] for each in waiting))
        return item

    order = data.draw(st.permutations(range(len(sizes))))
    with ClipLoader(read, most, size_of=sizes.__getitem__) as loader:
        loader.prefetch(range(len(sizes)))
        for item in order:
            wanted.append(item)
            assert loader.take(item) == item
            held.discard(item)
    assert max(worst, default=0) <= most


def test_another_order_than_the_one_asked_for_does_not_block() -> None:
    read: list[int] = []
    with ClipLoader(lambda item: (read.append(item), item)[1], most=1) as loader:
        loader.prefetch(range(6))
        _wait_until(lambda: read == [0])
        assert [loader.take(item) for item in reversed(range(6))] == [5, 4, 3, 2, 1, 0]


def test_an_item_that_was_not_asked_for_is_read_then() -> None:
    with ClipLoader(lambda item: item, most=1) as loader:
        assert loader.take(3) == 3


def test_an_item_that_is_asked_for_twice_can_be_taken_twice() -> None:
    with ClipLoader(lambda item: item, most=2) as loader:
        loader.prefetch([1, 1])
        assert [loader.take(1), loader.take(1)] == [1, 1]


def test_an_error_surfaces_where_its_item_is_taken_and_the_rest_goes_on() -> None:
    def read(item: int) -> int:
        if item == 1:
            raise OSError("disk gone")
        return item

    with ClipLoader(read, most=3) as loader:
        loader.prefetch([0, 1, 2])
        assert loader.take(0) == 0
        with pytest.raises(OSError, match="disk gone"):
            loader.take(1)
        assert loader.take(2) == 2


def test_waiting_is_measured() -> None:
    def slow(item: int) -> int:
        time.sleep(0.1)
        return item

    with ClipLoader(slow, most=1) as loader:
        loader.take(0)
        assert 0.08 < loader.waited_s < 2.0
        loader.prefetch([1])
        time.sleep(0.3)
        waited_s = loader.waited_s
        loader.take(1)
        assert loader.waited_s - waited_s < 0.08


def test_closing_ends_the_thread_even_with_items_left() -> None:
    before = threading.active_count()
    loader = ClipLoader(lambda item: item, most=2)
    loader.prefetch(range(100))
    assert threading.active_count() == before + 1
    loader.close()
    loader.close()
    assert threading.active_count() == before


def _wait_until(is_true: object, limit_s: float = 5.0) -> None:
    end_s = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < end_s, "nothing happened"
        time.sleep(0.005)
