"""What counts as media where no table lists the files."""

from pathlib import PurePosixPath

_VIDEO_SUFFIXES = frozenset(
    {".mp4", ".mov", ".m4v", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".mts", ".m2ts"}
    | {".ogv", ".flv", ".wmv", ".mxf", ".y4m", ".ivf", ".h264", ".264", ".hevc", ".265", ".obu"}
)
_PICTURE_SUFFIXES = frozenset(
    {".gif", ".jpg", ".jpeg", ".png", ".webp", ".avif", ".bmp", ".tif", ".tiff"}
)


def has_media_name(path: str) -> bool:
    """Whether a path is called like a video or picture."""
    return has_video_name(path) or PurePosixPath(path).suffix.lower() in _PICTURE_SUFFIXES


def has_video_name(path: str) -> bool:
    """Whether a path is called like a video that is no animated picture."""
    return PurePosixPath(path).suffix.lower() in _VIDEO_SUFFIXES


def is_hidden(path: str) -> bool:
    """Whether a file, or a folder on the way to it, begins with a dot: `._a.mp4`."""
    return any(part.startswith(".") for part in PurePosixPath(path).parts if part != "..")
