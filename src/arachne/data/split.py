"""Which clips only validate: chosen by content, so that adding clips moves none across.

All clips of one file are on one side, since spans of it may overlap, and scenes go on across them.
"""

import hashlib
from collections.abc import Iterable, Sequence

from arachne.core.ledger import LedgerRow


def held_out(row: LedgerRow, share: float) -> bool:
    """Whether a clip belongs to the held-out `share` (0 to 1) of all clips."""
    return _place(f"{row.content}@None") < share * 2**64


def training_rows(rows: Iterable[LedgerRow], share: float) -> tuple[LedgerRow, ...]:
    """The rows that train, in order; the others are held out."""
    return tuple(row for row in rows if not held_out(row, share))


def first_by_content(rows: Sequence[LedgerRow], limit: int) -> tuple[LedgerRow, ...]:
    """At most `limit` rows, in their order: a choice that other clips change little."""

    def place(item: int) -> tuple[int, int]:
        row = rows[item]
        return _place(f"{row.content}@{row.clip.span}"), item

    chosen = sorted(range(len(rows)), key=place)[:limit]
    return tuple(rows[item] for item in sorted(chosen))


def _place(name: str) -> int:
    """Where a name falls among 2^64 places."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
