"""Clips that could not be prepared, remembered beside the cache under the key of their latents.

All processes and later runs see them, so that a clip that took minutes or a process with it is
tried once. The key holds the file's bytes, span and shape: a repaired file is another clip.
"""

from pathlib import Path

from arachne.data.atomic_file import CACHE_FIX, write_whole


class Rejections:
    """Reasons by key, one small file each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, key: str, reason: str) -> None:
        """Remember a reason.

        Raises:
            DataError: The disk is full, or the folder cannot be written.
        """
        write_whole(self._folder / key, reason.encode(), fix=CACHE_FIX)

    def reason_of(self, key: str) -> str | None:
        """Why a clip was rejected; None if it was not."""
        try:
            return (self._folder / key).read_text(errors="replace")
        except FileNotFoundError:
            return None

    def forget(self, key: str) -> None:
        """Let a clip be tried again."""
        (self._folder / key).unlink(missing_ok=True)
