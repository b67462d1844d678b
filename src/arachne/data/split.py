"""Which clips only validate: chosen by content, so that adding clips moves none across."""

import hashlib

from arachne.core.ledger import LedgerRow


def held_out(row: LedgerRow, share: float) -> bool:
    """Whether a clip belongs to the held-out `share` (0 to 1) of all clips."""
    name = f"{row.content}@{row.clip.span}".encode()
    place = int.from_bytes(hashlib.sha256(name).digest()[:8], "big")
    return place < share * 2**64
