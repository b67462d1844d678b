"""Read ahead: a background thread fetches the items of coming launches, within a bound."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")

SizeOf = Callable[[int], int]
"""How much an item takes up, once it is read."""


def one(_item_id: int) -> int:
    """Where items are counted."""
    return 1


@dataclass(frozen=True, slots=True)
class _Value(Generic[T]):
    value: T


@dataclass(frozen=True, slots=True)
class _Failure:
    error: Exception


class ClipLoader(Generic[T]):
    """Items by id, read by one background thread in the order in which they were asked for.

    The items that are read, and wait to be taken, together take up at most `most`, or are a single
    one. An item that is waited for is read even then, so that taking in another order cannot block
    for ever.

    Args:
        read: Reads an item.
        most: What items that wait may take up.
        size_of: Says what one takes up, before it is read; by default items are counted.
    """

    def __init__(self, read: Callable[[int], T], most: int, *, size_of: SizeOf = one) -> None:
        assert most >= 1, most
        self._read = read
        self._most = most
        self._size_of = size_of
        self._changed = threading.Condition()
        self._queue: deque[int] = deque()
        self._ready: dict[int, deque[_Value[T] | _Failure]] = {}
        self._ready_size = 0
        self._reading: int | None = None
        self._wanted: int | None = None
        self._is_closed = False
        self._waited_s = 0.0
        self._thread = threading.Thread(target=self._run, name="clip-loader", daemon=True)
        self._thread.start()

    @property
    def waited_s(self) -> float:
        """Seconds that all calls of `take` have waited, together."""
        return self._waited_s

    def prefetch(self, item_ids: Iterable[int]) -> None:
        """Start reading items; an id that is given twice is read twice and can be taken twice."""
        with self._changed:
            assert not self._is_closed, "the loader is closed"
            self._queue.extend(item_ids)
            self._changed.notify_all()

    def take(self, item_id: int) -> T:
        """One item, waiting until it is read; one that was not asked for is read now.

        Raises:
            Exception: Whatever `read` raised for this item.
        """
        begin_s = time.monotonic()
        with self._changed:
            assert not self._is_closed, "the loader is closed"
            if item_id not in self._ready and item_id != self._reading:
                if item_id in self._queue:
                    self._queue.remove(item_id)
                self._queue.appendleft(item_id)
            self._wanted = item_id
            self._changed.notify_all()
            self._changed.wait_for(lambda: item_id in self._ready or self._is_closed)
            self._wanted = None
            assert item_id in self._ready, "the loader was closed while an item was waited for"
            results = self._ready[item_id]
            result = results.popleft()
            if not results:
                del self._ready[item_id]
            self._ready_size -= self._size_of(item_id)
            self._waited_s += time.monotonic() - begin_s
            self._changed.notify_all()
        if isinstance(result, _Failure):
            raise result.error
        return result.value

    def close(self) -> None:
        """Stop reading and wait for the thread; calling it again does nothing."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()
        self._ready.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _can_read(self) -> bool:
        if not self._queue:
            return False
        if not self._ready_size or self._queue[0] == self._wanted:
            return True
        return self._ready_size + self._size_of(self._queue[0]) <= self._most

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._can_read())
                if self._is_closed:
                    return
                item_id = self._reading = self._queue.popleft()
            result = self._result(item_id)
            with self._changed:
                self._reading = None
                self._ready.setdefault(item_id, deque()).append(result)
                self._ready_size += self._size_of(item_id)
                self._changed.notify_all()

    def _result(self, item_id: int) -> _Value[T] | _Failure:
        try:
            return _Value(self._read(item_id))
        except Exception as error:  # surfaces in `take`, on the thread that wants the item
            return _Failure(error)
