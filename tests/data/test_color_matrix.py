"""Colours are converted by the matrix that a frame has, and a matrix that cannot be is named."""

from pathlib import Path

import av
import numpy as np
import pytest
from av.error import FFmpegError
from av.video.reformatter import VideoReformatter

from arachne.core.errors import DataError
from arachne.data.color_matrix import color_matrix
from arachne.data.probe import probe
from tests.data.media import Look, write_flat_color, write_ramp

FORMATS = ("yuv420p", "nv12", "yuva420p", "yuv444p12le", "gray", "ya8", "pal8", "rgb24", "gbrap")


def is_converted(frame: av.VideoFrame) -> bool:
    try:
        VideoReformatter().reformat(frame, format="gbrp", width=32, height=32, threads=1)
    except FFmpegError:
        return False
    return True


@pytest.mark.parametrize("pix_fmt", FORMATS)
def test_those_are_refused_that_ffmpeg_refuses(pix_fmt: str) -> None:
    for matrix in range(19):
        frame = av.VideoFrame(64, 64, pix_fmt)
        frame.colorspace = matrix
        if is_converted(frame):
            color_matrix(frame)
        else:
            with pytest.raises(DataError, match=rf"its colour matrix is .* \({matrix}\), which FF"):
                color_matrix(frame)


@pytest.mark.parametrize(
    ("matrix", "name"),
    [(10, r"BT\.2020 constant luminance \(10\)"), (8, r"YCgCo \(8\)"), (14, r"ICtCp \(14\)")],
)
def test_a_video_whose_matrix_is_not_converted_is_refused_by_its_name(
    tmp_path: Path, matrix: int, name: str
) -> None:
    path = tmp_path / "a.mkv"
    write_flat_color(path, Look(), (100.0, 128.0, 128.0), matrix, is_full_range=False)
    with pytest.raises(DataError, match=rf"its colour matrix is {name}, which FFmpeg does not con"):
        probe(path)


def test_a_video_of_grey_needs_no_matrix(tmp_path: Path) -> None:
    path = write_ramp(tmp_path / "a.mkv", 3, Look(codec="ffv1", pix_fmt="gray"))
    assert probe(path).num_frames == 3
    frame = av.VideoFrame.from_ndarray(np.zeros((48, 64), np.uint8), format="gray")
    frame.colorspace = 10
    assert color_matrix(frame) is None
