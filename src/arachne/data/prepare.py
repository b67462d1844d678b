"""Prepare clips for training: decode, encode, cache. What is cached already is left alone."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from arachne.core.errors import DataError
from arachne.core.ledger import LedgerRow
from arachne.data.cache import LatentCache, text_key, video_key
from arachne.data.decode import decode_clip
from arachne.data.file_identity import content_of
from arachne.data.inspect import rejected
from arachne.data.source_path import source_path


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


def keys_of(
    row: LedgerRow, fps: float, video_fingerprint: str, text_fingerprint: str
) -> tuple[str, str]:
    """The cache keys of a usable clip's (latents, token states)."""
    assert row.bucket is not None, row
    return (
        video_key(row.content, row.clip.span, row.bucket, fps, video_fingerprint),
        text_key(row.clip.caption, text_fingerprint),
    )


def missing(
    rows: Iterable[LedgerRow],
    cache: LatentCache,
    fps: float,
    video_fingerprint: str,
    text_fingerprint: str,
) -> tuple[LedgerRow, ...]:
    """The usable rows of which latents or token states are not cached yet, in order.

    Callers may spread them over processes and machines; work done twice is stored once.
    """
    return tuple(
        row
        for row in rows
        if row.status != "rejected"
        and not all(map(cache.has, keys_of(row, fps, video_fingerprint, text_fingerprint)))
    )


def encode_clip(
    row: LedgerRow,
    root: Path,
    fps: float,
    video_encoder: VideoEncoder,
    text_encoder: TextEncoder,
    cache: LatentCache,
) -> LedgerRow:
    """The row itself once its latents and token states are cached, or a rejected row.

    A clip that cannot be decoded, or whose file has changed since it was inspected, comes back as
    rejected with the reason; the run goes on without it.

    Raises:
        DataError: The cache cannot be written.
    """
    if row.bucket is None:
        return row
    latents_key, states_key = keys_of(row, fps, video_encoder.fingerprint, text_encoder.fingerprint)
    if not cache.has(latents_key):
        try:
            latents = _latents(row, root, fps, video_encoder)
        except DataError as error:
            return rejected(row.clip, str(error), row.content, row.arithmetic)
        cache.put(latents_key, latents)
    if not cache.has(states_key):
        states = np.asarray(text_encoder.encode(row.clip.caption), dtype=np.float32)
        cache.put(states_key, states)
    return row


def _latents(row: LedgerRow, root: Path, fps: float, video_encoder: VideoEncoder) -> NDArray[Any]:
    assert row.bucket is not None
    try:
        path = source_path(root, row.clip.path)
        if content_of(path) != row.content:
            raise DataError("the file has changed since it was inspected; inspect it again")
        frames = decode_clip(path, row.clip.span, row.bucket, fps)
    except OSError as error:
        raise DataError(f"the file cannot be read: {error.strerror or error}") from error
    latents = np.asarray(video_encoder.encode(frames), dtype=np.float32)
    if not np.isfinite(latents).all():
        raise DataError("the video encoder gave values that are not finite")
    return latents
