"""What training needs of each clip: which cached arrays, which of them are missing, and whose clip
turned out to be unusable."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from arachne.core.errors import DamagedFileError, DataError
from arachne.core.ledger import Ledger, LedgerRow
from arachne.data.atomic_file import remove_leftovers
from arachne.data.cache import LatentCache, first_frame_key, text_key, video_key
from arachne.data.claims import remove_abandoned_claims
from arachne.data.frame_size import Fit
from arachne.data.inspect import rejected
from arachne.data.rejections import Rejections


def keys_of(
    row: LedgerRow,
    fps: float,
    video_fingerprint: str,
    text_fingerprint: str,
    fit: Fit = "crop",
    *,
    text_sees_clip: bool = False,
) -> tuple[str, str]:
    """The cache keys of a usable clip's (latents, token states)."""
    assert row.bucket is not None, row
    seen = _first_frame_key(row, fps, fit) if text_sees_clip else None
    return (
        video_key(row.content, row.clip.part, row.bucket, fps, video_fingerprint, fit),
        text_key(row.clip.caption, text_fingerprint, seen),
    )


def _first_frame_key(row: LedgerRow, fps: float, fit: Fit) -> str:
    assert row.bucket is not None, row
    return first_frame_key(row.content, row.clip.part, row.bucket, fps, fit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latents:
    """A clip's latents as a piece of work; clips of the same bytes, span and shape share them."""

    key: str
    row: LedgerRow


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStates:
    """A caption's token states as a piece of work; clips of the same caption share them.

    Attributes:
        key: Of the states in the cache.
        caption: The words.
        row: A clip of which the text encoder sees the first frame; None for one that sees none,
            and for what guidance compares to.
    """

    key: str
    caption: str
    row: LedgerRow | None = None


Piece = Latents | TokenStates


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """A cache, and what tells its arrays apart.

    Attributes:
        cache_dir: The cache's folder; claims and rejections lie in it too.
        fps: Frames per second of the latents.
        video_fingerprint: Names the video encoder.
        text_fingerprint: Names the text encoder.
        fit: Whether frames were cropped, or set in black.
        text_sees_clip: Whether the text encoder looks at a clip's first frame.
    """

    cache_dir: Path
    fps: float
    video_fingerprint: str
    text_fingerprint: str
    fit: Fit = "crop"
    text_sees_clip: bool = False

    @property
    def cache(self) -> LatentCache:
        """The arrays."""
        return LatentCache(self.cache_dir)

    @property
    def rejections(self) -> Rejections:
        """Clips that were tried, and cannot be prepared."""
        return Rejections(self.cache_dir / "rejected")

    @property
    def claims_dir(self) -> Path:
        """Where processes claim pieces of work."""
        return self.cache_dir / "claims"

    @property
    def null_key(self) -> str:
        """The key of the empty caption's token states."""
        return text_key("", self.text_fingerprint)

    def tidy(self) -> None:
        """Remove what processes that were ended have left: parts of files, and claims.

        The empty caption's states go too if they are damaged: no step could leave them out, as it
        does a clip whose arrays are.
        """
        remove_leftovers(self.cache_dir)
        remove_abandoned_claims(self.claims_dir)
        try:
            self.cache.get(self.null_key)
        except DamagedFileError:
            self.cache.discard(self.null_key)
        except DataError:
            pass  # there is none yet; one that cannot be read is an error where it is needed

    def keys_of(self, row: LedgerRow) -> tuple[str, str]:
        """The cache keys of a usable clip's (latents, token states)."""
        return keys_of(
            row,
            self.fps,
            self.video_fingerprint,
            self.text_fingerprint,
            self.fit,
            text_sees_clip=self.text_sees_clip,
        )

    def pieces(self, rows: Iterable[LedgerRow]) -> tuple[Piece, ...]:
        """All arrays of the usable rows and the empty caption's, each once, in the rows' order."""
        empty = TokenStates(key=self.null_key, caption="")
        found: dict[str, Piece] = {empty.key: empty}
        for row in rows:
            if row.status == "rejected":
                continue
            latents_key, _ = self.keys_of(row)
            found.setdefault(latents_key, Latents(key=latents_key, row=row))
            for states in self._token_states(row):
                found.setdefault(states.key, states)
        return tuple(found.values())

    def _token_states(self, row: LedgerRow) -> Iterator[TokenStates]:
        """Those of all captions of a clip."""
        seen = _first_frame_key(row, self.fps, self.fit) if self.text_sees_clip else None
        for caption in row.clip.captions:
            key = text_key(caption, self.text_fingerprint, seen)
            yield TokenStates(key=key, caption=caption, row=row if self.text_sees_clip else None)

    def is_settled(self, piece: Piece) -> bool:
        """Whether nothing is to be done: the array is cached, or its clip was rejected."""
        return self.cache.has(piece.key) or self.rejections.reason_of(piece.key) is not None

    def amended(self, ledger: Ledger, reasons: Mapping[str, str]) -> Ledger:
        """The ledger with clips rejected whose arrays could not be made, and with the frames of
        those that decoding has counted.

        Args:
            ledger: Of all clips.
            reasons: Those met in this run, by the array's key; the remembered ones count too.
        """
        rows = tuple(
            row if row.status == "rejected" else self._amended_row(row, reasons)
            for row in ledger.rows
        )
        return replace(ledger, rows=rows)

    def _amended_row(self, row: LedgerRow, reasons: Mapping[str, str]) -> LedgerRow:
        key, _ = self.keys_of(row)
        of_frames = [key]
        if self.text_sees_clip:
            of_frames += [states.key for states in self._token_states(row)]
        for each in of_frames:
            reason = reasons.get(each) or self.rejections.reason_of(each)
            if reason is not None and not self.cache.has(each):
                refused = rejected(row.clip, reason, row.content, row.arithmetic)
                return replace(refused, stamp=row.stamp)
        num_frames = None if row.is_decoded else self.cache.frames_of(key)
        return row if num_frames is None else row.counted(num_frames)
