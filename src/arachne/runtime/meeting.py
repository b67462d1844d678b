"""How the ranks that torchrun started find out that they belong together.

Its store may outlive an attempt, and then holds what ranks wrote that are gone. Its count of
restarts names no attempt: a machine that joins later counts from 0.
"""

import time
from uuid import uuid4

from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

from arachne.core.errors import LostRankError

_PAUSE_S = 0.02


def attempt_name(store: Store, rank: int, size: int, timeout_s: float) -> str:
    """A name that the living ranks of one attempt share, and no attempt before them had.

    Every rank calls it. Rank 0 chooses the name and tells it to whoever says hello, until all other
    ranks have confirmed it: those that are gone confirm nothing.

    Raises:
        LostRankError: Some rank did not come.
    """
    own = uuid4().hex
    if rank != 0:
        store.set(f"hello/{rank}", own)
        name = store.get(f"answer/{own}").decode()  # waits
        store.set(f"confirmed/{name}/{rank}", "yes")
        return name
    deadline_s = time.monotonic() + timeout_s
    missing = set(range(1, size))
    while missing:
        for other in sorted(missing):
            if store.check([f"hello/{other}"]):
                store.set(f"answer/{store.get(f'hello/{other}').decode()}", own)
        missing = {other for other in missing if not store.check([f"confirmed/{own}/{other}"])}
        if missing and time.monotonic() > deadline_s:
            raise LostRankError(
                f"ranks {sorted(missing)} of {size} did not come within {timeout_s:g} s; look at "
                "what their machines say"
            )
        time.sleep(_PAUSE_S)
    return own
