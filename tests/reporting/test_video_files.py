from fractions import Fraction

import av
import numpy as np
import pytest
from PIL import Image

from arachne.core.errors import DataError
from arachne.reporting import video_files
from arachne.reporting.video_files import contact_sheet, read_mp4, write_mp4


def _frames(num_frames=7, height=32, width=48):
    """Each frame of one grey, 30 steps brighter than the one before."""
    frames = np.zeros((num_frames, height, width, 3), np.uint8)
    frames[:] = (30 * np.arange(num_frames, dtype=np.uint8))[:, None, None, None]
    return frames


def _read(path):
    with path.open("rb") as file, av.open(file) as container:
        stream = container.streams.video[0]
        pictures = [picture.to_ndarray(format="rgb24") for picture in container.decode(stream)]
        facts = (stream.codec_context.name, stream.codec_context.pix_fmt, stream.average_rate)
    return np.stack(pictures), facts


def test_a_video_reads_back_with_its_frames_in_order(tmp_path):
    write_mp4(tmp_path / "deep" / "a.mp4", _frames(), fps=16)
    frames, (codec, pixels, rate) = _read(tmp_path / "deep" / "a.mp4")
    assert frames.shape == (7, 32, 48, 3)
    assert np.abs(frames.astype(int) - _frames()).max() <= 3
    assert (codec, pixels, rate) == ("h264", "yuv420p", 16)


def test_colours_are_right_side_up(tmp_path):
    frames = np.zeros((3, 32, 32, 3), np.uint8)
    frames[:, :16] = (200, 30, 30)
    frames[:, 16:] = (30, 30, 200)
    write_mp4(tmp_path / "a.mp4", frames, fps=8)
    found, _ = _read(tmp_path / "a.mp4")
    assert np.abs(found[1, 4, 8].astype(int) - (200, 30, 30)).max() < 12
    assert np.abs(found[1, 28, 8].astype(int) - (30, 30, 200)).max() < 12


def test_broken_frame_rates_are_kept(tmp_path):
    write_mp4(tmp_path / "a.mp4", _frames(), fps=24000 / 1001)
    _, (_, _, rate) = _read(tmp_path / "a.mp4")
    assert rate == Fraction(24000, 1001)


def test_odd_sides_are_padded_by_one(tmp_path):
    write_mp4(tmp_path / "a.mp4", _frames(height=33, width=47), fps=16)
    frames, _ = _read(tmp_path / "a.mp4")
    assert frames.shape == (7, 34, 48, 3)
    assert np.abs(frames[3].astype(int) - 90).max() <= 3


def test_a_single_frame_is_a_video_too(tmp_path):
    write_mp4(tmp_path / "a.mp4", _frames(num_frames=1), fps=16)
    assert len(_read(tmp_path / "a.mp4")[0]) == 1


def test_nothing_but_the_file_is_left(tmp_path):
    write_mp4(tmp_path / "a.mp4", _frames(), fps=16)
    contact_sheet(tmp_path / "a.png", [("a", _frames())], columns=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mp4", "a.png"]


def test_a_missing_encoder_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(video_files, "_CODEC", "libx999")
    with pytest.raises(DataError, match="no encoder 'libx999'"):
        write_mp4(tmp_path / "a.mp4", _frames(), fps=16)


@pytest.mark.parametrize("frames", [np.zeros((2, 4, 4, 3)), np.zeros((0, 4, 4, 3), np.uint8)])
def test_frames_of_another_form_are_refused(tmp_path, frames):
    with pytest.raises(DataError, match="a video needs uint8"):
        write_mp4(tmp_path / "a.mp4", frames, fps=16)
    with pytest.raises(DataError, match="a video needs uint8"):
        contact_sheet(tmp_path / "a.png", [("a", frames)], columns=2)


def test_a_contact_sheet_shows_first_and_last_frames_of_each_row(tmp_path):
    rows = [("first é 猫", _frames()), ("second", 255 - _frames(height=20))]
    contact_sheet(tmp_path / "deep" / "a.png", rows, columns=3)
    with Image.open(tmp_path / "deep" / "a.png") as image:
        sheet = np.asarray(image.convert("RGB"))
    label, gap = video_files._LABEL_HEIGHT, video_files._GAP
    assert sheet.shape == (2 * label + 32 + 20 + gap, 3 * 48 + 2 * gap, 3)
    assert [int(sheet[label + 5, column * (48 + gap) + 5, 0]) for column in range(3)] == [
        0,
        90,
        180,
    ]
    second = 2 * label + 32 + gap
    assert [int(sheet[second + 5, column * (48 + gap) + 5, 0]) for column in range(3)] == [
        255,
        165,
        75,
    ]
    assert (sheet[:label] < 128).any()  # the label is written


def test_short_clips_fill_fewer_columns(tmp_path):
    contact_sheet(tmp_path / "a.png", [("a", _frames(num_frames=2))], columns=8)
    with Image.open(tmp_path / "a.png") as image:
        assert image.width == 2 * 48 + video_files._GAP


def test_an_empty_sheet_is_refused(tmp_path):
    with pytest.raises(DataError, match="needs at least one clip"):
        contact_sheet(tmp_path / "a.png", [], columns=2)


def test_a_video_is_read_back_with_all_its_frames(tmp_path):
    frames = np.full((5, 32, 48, 3), 90, np.uint8)
    frames[3] = 200
    write_mp4(tmp_path / "a.mp4", frames, fps=8.0)
    found = read_mp4(tmp_path / "a.mp4")
    assert found.shape == frames.shape
    assert np.abs(found.astype(int) - frames).max() <= 4


def test_a_sheet_of_large_frames_is_scaled_down(tmp_path):
    frames = np.zeros((3, 100, 400, 3), np.uint8)
    contact_sheet(tmp_path / "sheet.png", [("a", frames)], columns=2, max_side=200)
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size == (2 * 200 + 2, 50 + 18)
