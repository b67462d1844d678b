"""Which matrix turns a frame's luma and chroma into colours, and which ones FFmpeg cannot use."""

from av.video.frame import VideoFrame
from av.video.reformatter import Colorspace

from arachne.core.errors import DataError

_UNSPECIFIED = 2
_HD_HEIGHT = 720
"""Untagged video is BT.709 from this height on and BT.601 below, as players have it."""

_KNOWN = frozenset({0, 1, _UNSPECIFIED, 4, 5, 6, 7, 9})
"""By their numbers in ISO/IEC 23091-2, those that swscale converts."""

_NAMES = {
    8: "YCgCo",
    10: "BT.2020 constant luminance",
    11: "SMPTE ST 2085",
    12: "chromaticity-derived non-constant luminance",
    13: "chromaticity-derived constant luminance",
    14: "ICtCp",
    15: "IPT-C2",
    16: "YCgCo-Re",
    17: "YCgCo-Ro",
}


def color_matrix(frame: VideoFrame) -> Colorspace | None:
    """The matrix of a frame that does not say its own; None where it does, or has no chroma.

    Raises:
        DataError: It says one that cannot be used.
    """
    matrix = int(frame.colorspace)
    if matrix == _UNSPECIFIED:
        return Colorspace.ITU709 if frame.height >= _HD_HEIGHT else Colorspace.ITU601
    has_chroma = len(frame.format.components) > 2 and not frame.format.is_rgb
    if has_chroma and matrix not in _KNOWN:
        name = _NAMES.get(matrix, "unknown")
        raise DataError(
            f"its colour matrix is {name} ({matrix}), which FFmpeg does not convert; encode it "
            "anew as BT.709, or BT.2020 non-constant luminance"
        )
    return None
