"""Rows of ledgers for tests that do not mind what they say."""

from arachne.core.clip import Clip
from arachne.core.ledger import LedgerRow

REJECTED = LedgerRow(
    clip=Clip(path="a.mp4", caption=""),
    status="rejected",
    arithmetic="",
    reason="it is no video",
    bucket=None,
    num_tokens=0,
    content="",
)
