"""The ledger: a row per input clip, or per piece of it, saying what became of it and why."""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Literal

from arachne.core.bucket import Bucket
from arachne.core.clip import Clip

Status = Literal["kept", "trimmed", "rejected"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """What became of one clip.

    Attributes:
        clip: The clip, as the dataset names it.
        status: `kept` whole, `trimmed` to a shorter legal length, or `rejected`.
        arithmetic: Frames from file to model, `132f@25 → 84f@16 → 81`; empty if nothing was read.
        reason: Why the clip was trimmed or rejected; what was done to it otherwise.
        bucket: The shape it trains in; None exactly when it was rejected.
        num_tokens: Tokens of that shape; 0 when rejected.
        content: SHA-256 of the source file's bytes; empty if the file could not be read.
        num_frames: Frames that the file has for it, before retiming; 0 if they are not known.
        is_decoded: Whether decoding has counted them all; else they are estimated from packets.
        stamp: Of the source file as it was when it was hashed (`data/file_stamp.py`); empty if it
            was not. Not compared: a copy of a dataset gives the same ledger.
    """

    clip: Clip
    status: Status
    arithmetic: str
    reason: str
    bucket: Bucket | None
    num_tokens: int
    content: str
    num_frames: int = 0
    is_decoded: bool = False
    stamp: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        assert (self.bucket is None) == (self.status == "rejected"), self

    def counted(self, num_frames: int) -> "LedgerRow":
        """The row after decoding has counted the frames; if they are others, its reason says so."""
        if self.num_frames in (0, num_frames):
            return replace(self, num_frames=num_frames, is_decoded=True)
        note = f"{num_frames} frames were decoded where the file lists {self.num_frames}"
        reason = f"{self.reason}; {note}" if self.reason else note
        return replace(self, num_frames=num_frames, is_decoded=True, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """All rows of one dataset, in the dataset's order."""

    rows: tuple[LedgerRow, ...]

    @property
    def usable(self) -> tuple[LedgerRow, ...]:
        """Rows that train: kept or trimmed."""
        return tuple(row for row in self.rows if row.status != "rejected")

    @property
    def counts(self) -> dict[str, int]:
        """Rows by status; all three statuses are present."""
        found = Counter(row.status for row in self.rows)
        return {status: found[status] for status in ("kept", "trimmed", "rejected")}
