"""Probe: what a file holds, without decoding more than its first frame.

A file is scanned once however many spans are cut from it.
"""

from collections.abc import Callable

from arachne.core.clip import MediaFacts, TimeSpan
from arachne.data.file_identity import remembered
from arachne.data.media_file import MediaFile
from arachne.data.picture_source import is_picture, scan_picture
from arachne.data.remote_path import DatasetPath
from arachne.data.timeline import Timeline, facts_of
from arachne.data.video_scan import scan_video

_MAGIC_BYTES = 16


def is_picture_file(file: MediaFile) -> bool:
    """Whether the content is a picture's; the name decides nothing."""
    with file.open() as opened:
        return is_picture(opened.read(_MAGIC_BYTES))


def _scan(file: MediaFile) -> Timeline:
    return scan_picture(file) if is_picture_file(file) else scan_video(file)


timeline_of: Callable[[DatasetPath | MediaFile], Timeline] = remembered(_scan, max_files=64)
"""The timeline of a file; the last files scanned are remembered. Raises DataError."""


def probe(file: DatasetPath | MediaFile, span: TimeSpan | None = None) -> MediaFacts:
    """Size, rate and number of frames of a file's span, counted from its packets.

    Raises:
        DataError: The file is unreadable, damaged or over a limit, or the span lies outside.
    """
    return facts_of(timeline_of(file), span)
