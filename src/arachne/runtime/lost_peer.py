"""Errors that tell of a rank that cannot be reached, however torch words them."""

# pyright: reportPrivateImportUsage=false
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed

from arachne.core.errors import ArachneError, LostRankError, first_line
from arachne.runtime.hang_report import GO_ON


def is_of_lost_peer(error: BaseException | None) -> bool:
    """Whether an error, or one that led to it, tells of a rank that cannot be reached."""
    while error is not None:
        # gloo raises a plain RuntimeError whose message starts with the place in its source.
        if isinstance(error, torch.distributed.DistError) or "gloo/" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def lost_peers_named(rank: int) -> Iterator[None]:
    """A context in which what fails because a peer is gone is one line that says so.

    Raises:
        LostRankError: A peer, or the store that all meet at, cannot be reached any more.
    """
    try:
        yield
    except ArachneError:
        raise
    except Exception as error:
        if not is_of_lost_peer(error):
            raise
        raise LostRankError(
            f"rank {rank} cannot reach another rank any more ({first_line(error)}); what that one "
            f"or its machine says is the reason; {GO_ON}"
        ) from error
