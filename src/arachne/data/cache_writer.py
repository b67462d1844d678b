"""Write arrays into a cache in the background, so that nobody waits for the disk."""

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

from arachne.data.cache import LatentCache


class CacheWriter:
    """A thread that stores arrays in the order in which they come; a context that waits for it.

    `counts` has the decoded frames of some, by key.
    """

    def __init__(self, cache: LatentCache, counts: dict[str, int] | None = None) -> None:
        self._cache = cache
        self._counts = {} if counts is None else counts
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cache-writer")
        self._writing: deque[Future[None]] = deque()

    def put(self, key: str, array: NDArray[Any]) -> None:
        """Store an array some time later; it must not change any more."""
        num_frames = self._counts.get(key)  # it may come again before it is stored
        self._writing.append(
            self._thread.submit(self._cache.put, key, array, num_frames=num_frames)
        )

    def check(self) -> None:
        """Learn how writing went so far.

        Raises:
            DataError: The disk is full, or the folder cannot be written.
        """
        while self._writing and self._writing[0].done():
            self._writing.popleft().result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.shutdown()
        if error is None:
            self.check()
