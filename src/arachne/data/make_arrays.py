"""Make the missing arrays of a cache, beside any number of processes that do the same.

Each piece of work goes through: settled already? → claimed → decoded in a guarded process → encoded
here → stored whole → given up. Decoding runs ahead of encoding by as many clips as there are
decoders.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from arachne.core.errors import DataError
from arachne.core.ledger import LedgerRow
from arachne.data.claims import EXPIRES_S, Claims
from arachne.data.guarded_decoder import DecodeJob, GuardedDecoder, Refusal
from arachne.data.limits import MAX_DECODE_S
from arachne.data.prepare import Piece, Store, TokenStates
from arachne.data.remote_path import DatasetPath

_LOOK_AGAIN_S = 0.2
"""Between two looks at pieces that other processes have claimed."""


class VideoEncoder(Protocol):
    """Turns pixels into latents."""

    @property
    def fingerprint(self) -> str:
        """Differs whenever the latents of the same pixels would differ."""
        ...

    def encode(self, frames: NDArray[np.uint8], /) -> NDArray[np.float32]:
        """Latents [C, f, h, w] of frames [F, H, W, 3]."""
        ...


class TextEncoder(Protocol):
    """Turns words into token states."""

    @property
    def fingerprint(self) -> str:
        """Differs whenever the states of the same words would differ."""
        ...

    def encode(self, caption: str, /) -> NDArray[np.float32]:
        """Token states [L, D] of a caption."""
        ...


@runtime_checkable
class PictureReader(Protocol):
    """A text encoder that looks at a clip's first frame before it reads the caption."""

    def encode_seeing(self, caption: str, frame: NDArray[np.uint8], /) -> NDArray[np.float32]:
        """Token states [L, D] of a caption after a picture [H, W, 3]."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """What arrays are made from and with.

    Attributes:
        root: The dataset's folder.
        other_roots: Those of a run's other datasets, by their names.
        store: Where arrays go.
        video_encoder: Makes latents.
        text_encoder: Makes token states.
        num_decoders: Processes that decode ahead.
        time_limit_s: A clip that is decoded for longer is rejected.
        claims_expire_s: Claims that were not touched for so long are taken over.
    """

    root: DatasetPath
    store: Store
    video_encoder: VideoEncoder
    text_encoder: TextEncoder
    num_decoders: int = 1
    time_limit_s: float = MAX_DECODE_S
    claims_expire_s: float = EXPIRES_S
    other_roots: Mapping[str, DatasetPath] = field(default_factory=dict[str, DatasetPath])

    def root_of(self, dataset: str) -> DatasetPath:
        """The folder of the dataset that a clip names."""
        return self.other_roots[dataset] if dataset else self.root


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """This process works on a piece."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """A piece of work is done.

    Attributes:
        key: Of the piece.
        is_own: Whether this process made its array, or rejected its clip.
        reason: Why its clip was rejected just now; empty if it was not.
    """

    key: str
    is_own: bool
    reason: str = ""


Tell = Callable[[Begun | Settled], None]
"""Told of every piece."""


def make_arrays(workshop: Workshop, pieces: Sequence[Piece], tell: Tell) -> None:
    """Make what is missing; returns when every piece is settled, by whomever.

    Where nothing is missing nothing is written, so that the cache may be only for reading.

    Raises:
        DataError: The cache cannot be written, or the text encoder gives no numbers.
    """
    missing = [piece for piece in pieces if not _is_settled(workshop.store, piece, tell)]
    if not missing:
        return
    with ExitStack() as stack:
        claims = Claims(workshop.store.claims_dir, expires_s=workshop.claims_expire_s)
        stack.enter_context(claims)
        decoders = [
            stack.enter_context(GuardedDecoder(time_limit_s=workshop.time_limit_s))
            for _ in range(workshop.num_decoders)
        ]
        line = _Line(workshop=workshop, claims=claims, idle=deque(decoders), tell=tell)
        line.run(missing)


@dataclass(slots=True, kw_only=True)
class _Line:
    """The work of one process: what it has yet to look at, and what is being decoded for it."""

    workshop: Workshop
    claims: Claims
    idle: deque[GuardedDecoder]
    tell: Tell
    decoding: deque[tuple[GuardedDecoder, Piece]] = field(
        default_factory=deque[tuple[GuardedDecoder, Piece]]
    )

    def run(self, pieces: Sequence[Piece]) -> None:
        """Until every piece is settled."""
        waiting = list(pieces)
        while waiting:
            elsewhere = [piece for piece in waiting if not self._begin(piece)]
            while self.decoding:
                self._finish()
            if elsewhere:
                time.sleep(_LOOK_AGAIN_S)
            waiting = elsewhere

    def _begin(self, piece: Piece) -> bool:
        """See to a piece; False while another process has claimed it."""
        if _is_settled(self.workshop.store, piece, self.tell):
            return True
        if piece.row is not None and not self.idle:
            self._finish()
        if not self.claims.take(piece.key):
            return False
        if _is_settled(
            self.workshop.store, piece, self.tell
        ):  # between the first look and the claim
            self.claims.release(piece.key)
            return True
        self.tell(Begun(key=piece.key))
        if isinstance(piece, TokenStates) and piece.row is None:
            self._store(piece, _finite(self.workshop.text_encoder.encode(piece.caption)))
            return True
        assert piece.row is not None, "latents are a clip's"
        job = decode_job(self.workshop, piece.row)
        if isinstance(piece, TokenStates):
            job = replace(job, bucket=replace(job.bucket, frames=1))
        decoder = self.idle.popleft()
        decoder.start(job)
        self.decoding.append((decoder, piece))
        return True

    def _finish(self) -> None:
        """Encode and store what was first to be decoded."""
        decoder, piece = self.decoding.popleft()
        found = decoder.result()
        num_frames = None
        if isinstance(found, Refusal):
            pass
        elif isinstance(piece, TokenStates):
            text_encoder = self.workshop.text_encoder
            assert isinstance(text_encoder, PictureReader), "which its store says"
            found = _finite(text_encoder.encode_seeing(piece.caption, found.pixels[0]))
        else:
            num_frames = found.num_frames
            found = encoded_latents(self.workshop.video_encoder, found.pixels)
        self.idle.append(decoder)
        if isinstance(found, Refusal):
            self._reject(piece, found)
        else:
            self._store(piece, found, num_frames=num_frames)

    def _store(self, piece: Piece, array: NDArray[Any], *, num_frames: int | None = None) -> None:
        whole = np.asarray(array, dtype=np.float32)
        self.workshop.store.cache.put(piece.key, whole, num_frames=num_frames)
        self.claims.release(piece.key)
        self.tell(Settled(key=piece.key, is_own=True))

    def _reject(self, piece: Piece, refusal: Refusal) -> None:
        if refusal.is_lasting:
            self.workshop.store.rejections.add(piece.key, refusal.reason)
        self.claims.release(piece.key)
        self.tell(Settled(key=piece.key, is_own=True, reason=refusal.reason))


def _is_settled(store: Store, piece: Piece, tell: Tell) -> bool:
    """Whether somebody else has made or rejected a piece, which is then told."""
    is_settled = store.is_settled(piece)
    if is_settled:
        tell(Settled(key=piece.key, is_own=False))
    return is_settled


def decode_job(workshop: Workshop, row: LedgerRow) -> DecodeJob:
    """What has to be decoded for a usable clip."""
    assert row.bucket is not None, row
    return DecodeJob(
        root=workshop.root_of(row.clip.dataset),
        path=row.clip.path,
        content=row.content,
        span=row.clip.part,
        bucket=row.bucket,
        fps=workshop.store.fps,
        fit=workshop.store.fit,
    )


def _finite(states: NDArray[np.float32]) -> NDArray[np.float32]:
    """Token states, if all of them are finite: no caption is one that an encoder cannot read."""
    if not np.isfinite(states).all():
        raise DataError(
            "the text encoder gave values that are not finite, so its weights are damaged; name "
            "another folder as model.text_encoder, or fetch this one again"
        )
    return states


def encoded_latents(
    encoder: VideoEncoder, frames: NDArray[np.uint8]
) -> NDArray[np.float32] | Refusal:
    """Latents that are finite, or why there are none."""
    try:
        latents = np.asarray(encoder.encode(frames), dtype=np.float32)
    except DataError as error:
        return Refusal(reason=str(error), is_lasting=True)
    if not np.isfinite(latents).all():
        return Refusal(
            reason="the video encoder gave values that are not finite; if it does so for other "
            "clips too, its weights are damaged: fetch model.video_encoder again",
            is_lasting=True,
        )
    return latents
