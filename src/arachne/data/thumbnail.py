"""A clip's first frame as the model will see it, small enough for a page."""

import io

from PIL import Image

from arachne.core.bucket import Bucket
from arachne.core.errors import DataError
from arachne.core.ledger import LedgerRow
from arachne.data.decode import decode_clip
from arachne.data.frame_size import Fit
from arachne.data.remote_path import DatasetPath
from arachne.data.source_media import source_media

_QUALITY = 80


def thumbnail(root: DatasetPath, row: LedgerRow, fps: float, fit: Fit, max_side: int) -> bytes:
    """A JPEG of the first frame of a usable clip, turned, scaled and cut as for training.

    Raises:
        DataError: The clip cannot be decoded.
    """
    assert row.bucket is not None, row
    still = Bucket(width=row.bucket.width, height=row.bucket.height, frames=1)
    try:
        file = source_media(root, row.clip.path)
        pixels = decode_clip(file, row.clip.part, still, fps, fit=fit)
    except OSError as error:
        raise DataError(f"the file cannot be read: {error.strerror or error}") from error
    image = Image.fromarray(pixels[0])
    image.thumbnail((max_side, max_side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=_QUALITY)
    return buffer.getvalue()
