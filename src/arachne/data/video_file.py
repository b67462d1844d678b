"""Open a video as PyAV sees it, without letting it open anything else."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

import av
from av.container import InputContainer
from av.error import ArgumentError, FFmpegError, InvalidDataError
from av.error import EOFError as EndError
from av.video.stream import VideoStream

from arachne.core.errors import DataError
from arachne.data.cut_short import cut_short
from arachne.data.limits import MAX_FRAME_PIXELS, check_frame_size
from arachne.data.media_file import MediaFile

_OPTIONS = {
    # Playlists (hls, dash, concat, sdp) name further files and addresses: they are not listed.
    "format_whitelist": "mov,matroska,avi,mpegts,mpeg,mpegvideo,gif,ogg,flv,asf,"
    "h264,hevc,ivf,m4v,av1,obu,mxf,y4m,yuv4mpegpipe",
    "protocol_whitelist": "",
    # Also holds while the format is found out, when FFmpeg may decode by itself.
    "max_pixels": str(MAX_FRAME_PIXELS),
    # Then it need not: headers say all that is asked, and a large first frame takes it longer than
    # ten frames take decoding. It does not hold for decoding here, which has a context of its own.
    "skip_frame": "all",
}

_POINTER = b"version https://git-lfs"

_PACKET_BYTES, _SYNC = 188, b"\x47"
"""Packets of an MPEG transport stream, and what each begins with. Source: ISO/IEC 13818-1."""

_MOST_PACKETS = 5
"""Of that format FFmpeg by itself is sure from five on; it mistakes fewer for others."""


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
def opened_video(file: MediaFile) -> Generator[tuple[InputContainer, VideoStream], None, None]:
    """A container and its first video stream; FFmpeg's errors in the block become DataErrors.

    Raises:
        DataError: The file is no video, is damaged, or is over a limit.
    """
    if file.num_bytes == 0:
        raise DataError("the file has 0 bytes")
    try:
        with _container(file) as container:
            stream = _first_video(container, file)
            check_frame_size(stream.width, stream.height)
            # One thread: the memory of large frames stays bounded, and callers use processes.
            stream.codec_context.thread_count = 1
            yield container, stream
    except FFmpegError as error:
        raise _refusal(file, f"it cannot be read as a video: {error.strerror or error}") from error
    except (UnicodeDecodeError, OverflowError) as error:
        raise DataError(f"it cannot be read as a video: {error}") from error


@contextmanager
def _container(file: MediaFile) -> Generator[InputContainer, None, None]:
    with file.open() as opened:
        packets = opened.read(_MOST_PACKETS * _PACKET_BYTES)
        opened.seek(0)
        starts = range(0, len(packets), _PACKET_BYTES)
        is_transport = len(starts) > 1 and all(packets[at : at + 1] == _SYNC for at in starts)
        nameless: Any = _Nameless(opened)
        try:
            found = av.open(
                nameless,
                format="mpegts" if is_transport else None,
                options=_OPTIONS,
                metadata_errors="replace",
            )
        except FFmpegError as error:
            raise _refusal(file, _opening_fault(error)) from error
        with cast(InputContainer, found) as container:
            yield container


def _opening_fault(error: FFmpegError) -> str:
    if isinstance(error, InvalidDataError | ArgumentError):
        return "its content is no video or picture of a known format"
    if isinstance(error, EndError):
        return "the file is cut short: it ends before a whole frame of video"
    return f"it cannot be read as a video: {error.strerror or error}"


def _refusal(file: MediaFile, otherwise: str) -> DataError:
    """That the file is cut short or not there if it is; FFmpeg seldom says so."""
    with file.open() as opened:
        is_pointer = opened.read(len(_POINTER)) == _POINTER
    if is_pointer:
        return DataError("it is a pointer of Git LFS in place of the file; fetch it: git lfs pull")
    return DataError(cut_short(file) or otherwise)


def _first_video(container: InputContainer, file: MediaFile) -> VideoStream:
    for stream in container.streams.video:
        if stream.disposition & stream.disposition.attached_pic:
            continue
        if getattr(stream, "codec_context", None) is None:
            raise _refusal(file, "its video is damaged or of a codec that is not known")
        return stream
    raise _refusal(file, "it holds no video, only " + _kinds(container))


def _kinds(container: InputContainer) -> str:
    """Of streams; a video stream that is left is a cover picture."""
    kinds = sorted({stream.type for stream in container.streams})
    words = ["a cover picture" if kind == "video" else kind for kind in kinds]
    return " and ".join(words) if words else "nothing"
