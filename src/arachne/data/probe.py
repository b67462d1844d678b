"""Probe: what a file holds, without decoding more than its first frame.

A file is scanned once however many spans are cut from it.
"""

from collections.abc import Callable
from pathlib import Path

from arachne.core.clip import MediaFacts, TimeSpan
from arachne.data.file_identity import remembered
from arachne.data.picture_source import is_picture, scan_picture
from arachne.data.timeline import Timeline, facts_of
from arachne.data.video_scan import scan_video

_MAGIC_BYTES = 16


def is_picture_file(path: Path) -> bool:
    """Whether the content is a picture's; the name decides nothing."""
    with path.open("rb") as file:
        return is_picture(file.read(_MAGIC_BYTES))


def _scan(path: Path) -> Timeline:
    return scan_picture(path) if is_picture_file(path) else scan_video(path)


timeline_of: Callable[[Path], Timeline] = remembered(_scan, max_files=64)
"""The timeline of a file; the last files scanned are remembered. Raises DataError."""


def probe(path: Path, span: TimeSpan | None = None) -> MediaFacts:
    """Size, rate and number of frames of a file's span, counted from its packets.

    Raises:
        DataError: The file is unreadable, damaged or over a limit, or the span lies outside.
    """
    return facts_of(timeline_of(path), span)
