"""Open a video as PyAV sees it, without letting it open anything else."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import av
from av.container import InputContainer
from av.error import ArgumentError, FFmpegError, InvalidDataError
from av.error import EOFError as EndError
from av.video.stream import VideoStream

from arachne.core.errors import DataError
from arachne.data.limits import MAX_FRAME_PIXELS, check_frame_size

_OPTIONS = {
    # Playlists (hls, dash, concat, sdp) name further files and addresses: they are not listed.
    "format_whitelist": "mov,matroska,avi,mpegts,mpeg,mpegvideo,gif,ogg,flv,asf,"
    "h264,hevc,ivf,m4v,av1,obu,mxf,y4m,yuv4mpegpipe",
    "protocol_whitelist": "",
    # Also holds while the format is found out, when FFmpeg may decode by itself.
    "max_pixels": str(MAX_FRAME_PIXELS),
}


class _Nameless:
    """A file without a name: its content alone decides what it is."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        return self._file.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


@contextmanager
def opened_video(path: Path) -> Generator[tuple[InputContainer, VideoStream], None, None]:
    """A container and its first video stream; FFmpeg's errors in the block become DataErrors.

    Raises:
        DataError: The file is no video, is damaged, or is over a limit.
    """
    if path.stat().st_size == 0:
        raise DataError("the file has 0 bytes")
    try:
        with path.open("rb") as file, _container(file) as container:
            stream = _first_video(container)
            check_frame_size(stream.width, stream.height)
            # One thread: the memory of large frames stays bounded, and callers use processes.
            stream.codec_context.thread_count = 1
            yield container, stream
    except FFmpegError as error:
        raise DataError(f"it cannot be read as a video: {error.strerror or error}") from error
    except (UnicodeDecodeError, OverflowError) as error:
        raise DataError(f"it cannot be read as a video: {error}") from error


def _container(file: BinaryIO) -> InputContainer:
    nameless: Any = _Nameless(file)
    try:
        return cast(InputContainer, av.open(nameless, options=_OPTIONS, metadata_errors="replace"))
    except (InvalidDataError, ArgumentError) as error:
        raise DataError("its content is no video or picture of a known format") from error
    except EndError as error:
        raise DataError("the file is cut short: it ends before its index") from error


def _first_video(container: InputContainer) -> VideoStream:
    for stream in container.streams.video:
        if stream.disposition & stream.disposition.attached_pic:
            continue
        if getattr(stream, "codec_context", None) is None:
            raise DataError("its video is damaged or of a codec that is not known")
        return stream
    raise DataError("it holds no video, only " + _kinds(container))


def _kinds(container: InputContainer) -> str:
    kinds = sorted({stream.type for stream in container.streams})
    return " and ".join(kinds) if kinds else "nothing"
