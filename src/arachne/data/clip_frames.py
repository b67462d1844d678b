"""Pixels of clips for encoding while others train: decoded one by one in a guarded process."""

from types import TracebackType
from typing import Self

from arachne.core.errors import DataError
from arachne.core.ledger import LedgerRow
from arachne.data.guarded_decoder import GuardedDecoder, Refusal
from arachne.data.make_arrays import Workshop, decode_job
from arachne.data.timed_frame import Pixels


class ClipFrames:
    """Decodes clips; a context that ends the process. For one thread at a time.

    `counts` has the frames of clips that were decoded to their end, by the key of their latents.
    """

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._decoder = GuardedDecoder(time_limit_s=workshop.time_limit_s)
        self.counts: dict[str, int] = {}

    def read(self, row: LedgerRow) -> Pixels:
        """A clip's pixels [F, H, W, 3], 3 bytes each.

        Raises:
            DataError: It cannot be decoded, now or when it was tried before. Reasons that last are
                remembered beside the cache.
        """
        store = self._workshop.store
        key, _ = store.keys_of(row)
        reason = store.rejections.reason_of(key)
        if reason is None:
            self._decoder.start(decode_job(self._workshop, row))
            found = self._decoder.result()
            if not isinstance(found, Refusal):
                if found.num_frames is not None:
                    self.counts[key] = found.num_frames
                return found.pixels.copy(order="K")  # the next clip overwrites them
            reason = found.reason
            if found.is_lasting:
                store.rejections.add(key, reason)
        raise DataError(f"clip {row.clip.name!r}: {reason}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._decoder.__exit__(kind, error, trace)
