import struct
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from arachne.core.bucket import Bucket
from arachne.core.clip import TimeSpan
from arachne.core.errors import DataError
from arachne.data import probe, video_file, video_scan, video_source
from arachne.data.decode import decode_clip
from arachne.data.frame_size import scaled_size
from arachne.data.media_file import MediaFile, as_media_file
from arachne.data.timed_frame import TimedFrame
from tests.data.media import (
    Look,
    frame_numbers,
    grey_frames,
    stored_color,
    write_flat_color,
    write_ramp,
    write_video,
)

SMALL = Bucket(width=64, height=48, frames=17)


@pytest.mark.parametrize(
    ("name", "codec", "pix_fmt"),
    [
        ("a.mp4", "libx264", "yuv420p"),
        ("a.mkv", "libx265", "yuv420p10le"),
        ("a.webm", "libvpx-vp9", "yuva420p"),
        ("a.webm", "libvpx", "yuv420p"),
        ("b.mkv", "libsvtav1", "yuv420p"),
        ("a.avi", "mpeg4", "yuv420p"),
        ("a.ts", "libx264", "yuv420p"),
        ("a.mov", "mpeg4", "yuv420p"),
    ],
)
def test_each_frame_is_the_one_nearest_to_its_time(
    tmp_path: Path, name: str, codec: str, pix_fmt: str
) -> None:
    look = Look(codec=codec, pix_fmt=pix_fmt, fps=Fraction(25), width=128, height=96)
    path = write_ramp(tmp_path / name, 60, look)
    bucket = Bucket(width=128, height=96, frames=33)
    found = frame_numbers(decode_clip(path, None, bucket, 16.0))
    wanted = [round(k * 25 / 16) for k in range(33)]
    assert max(abs(a - b) for a, b in zip(found, wanted, strict=True)) <= 1
    exact = sum(a == b for a, b in zip(found, wanted, strict=True))
    assert exact >= 25  # 8-bit limited range and lossy coding blur single grey steps


def test_a_variable_rate_keeps_the_speed_of_motion(tmp_path: Path) -> None:
    greys = [20 + 5 * index for index in range(40)]
    times_ms = [100 * i for i in range(20)] + [2000 + round(i * 100 / 3) for i in range(20)]
    path = write_video(tmp_path / "a.mp4", grey_frames(greys, Look()), Look(), times_ms)
    pixels = decode_clip(path, None, Bucket(width=64, height=48, frames=25), 10.0)
    found = [round((float(frame.mean()) - 20) / 5) for frame in pixels]
    assert found[:20] == list(range(20))
    assert found[20:] == [20, 23, 26, 29, 32]


def test_a_slower_source_repeats_its_frames(tmp_path: Path) -> None:
    path = write_ramp(tmp_path / "a.mp4", 20, Look(fps=Fraction(8)))
    assert frame_numbers(decode_clip(path, None, SMALL, 16.0))[:6] == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.ts"])
def test_a_span_gives_the_same_frames_as_the_whole_file(tmp_path: Path, name: str) -> None:
    path = write_ramp(tmp_path / name, 80)
    whole = decode_clip(path, None, Bucket(width=64, height=48, frames=77), 16.0)
    part = decode_clip(path, TimeSpan(start_s=3.25, end_s=4.5), SMALL, 16.0)
    assert np.array_equal(part, whole[52:69])


def test_decoding_starts_at_the_keyframe_before_the_span_and_stops_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_ramp(tmp_path / "a.mp4", 96)
    decoded: list[float] = []
    original = video_source._timed

    def spy(*arguments: Any) -> Iterator[TimedFrame]:
        for frame in original(*arguments):
            decoded.append(frame.time_s)
            yield frame

    monkeypatch.setattr(video_source, "_timed", spy)
    decode_clip(path, TimeSpan(start_s=3.2, end_s=5.9), SMALL, 16.0)
    assert len(decoded) <= 8 + 17 + 2
    assert min(decoded) > 2.0


def test_of_a_whole_video_no_frame_is_decoded_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_ramp(tmp_path / "a.mp4", 20)
    expected = decode_clip(path, TimeSpan(start_s=0.0, end_s=9.0), SMALL, 16.0)
    path.touch()  # what is known of it counts no more
    monkeypatch.setattr(probe, "scan_video", None)
    assert np.array_equal(decode_clip(path, None, SMALL, 16.0), expected)


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("a.mp4", "libx264"),
        ("a.mkv", "libx265"),
        ("a.webm", "libvpx-vp9"),
        ("a.avi", "mpeg4"),
        ("a.ts", "mpeg2video"),
        ("a.h264", "libx264"),
    ],
)
def test_a_whole_video_is_read_once_if_its_packets_can_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, codec: str
) -> None:
    path = write_ramp(tmp_path / name, 40, Look(codec=codec, fps=Fraction(25)))
    opened: list[str] = []
    original = video_file._container

    def spy(file: MediaFile) -> Any:
        opened.append(file.path.name)
        return original(file)

    monkeypatch.setattr(video_file, "_container", spy)
    pixels = decode_clip(path, None, SMALL, 16.0)
    assert opened == [name]
    monkeypatch.setattr(video_scan, "_KEPT_BYTES", 2000)
    assert np.array_equal(decode_clip(path, None, SMALL, 16.0), pixels)
    assert opened == [name] * 3, "to find its times, and to decode it"


def test_a_part_whose_frames_are_larger_than_the_files_first_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "grows.webm"
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libvpx", rate=16)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        larger: Any = av.CodecContext.create("libvpx", "w")
        larger.width, larger.height, larger.pix_fmt = 96, 80, "yuv420p"
        larger.time_base, larger.framerate = Fraction(1, 16), Fraction(16)
        for index, encoder in enumerate((stream, larger)):
            for value in range(32):
                frame = _grey(value, encoder.width, encoder.height)
                frame.pts, frame.time_base = 32 * index + value, Fraction(1, 16)
                _mux(container, stream, encoder.encode(frame))
            _mux(container, stream, encoder.encode())
    for span, frames in ((None, 61), (TimeSpan(start_s=2.5, end_s=3.9), 17)):
        with pytest.raises(DataError, match="its frames change from 64x48 to 96x80"):
            decode_clip(path, span, Bucket(width=64, height=48, frames=frames), 16.0)


def _mux(container: Any, stream: Any, packets: list[Any]) -> None:
    for packet in packets:
        packet.stream = stream
        container.mux(packet)


def _grey(value: int, width: int, height: int) -> av.VideoFrame:
    pixels = np.full((height, width, 3), 4 * value, np.uint8)
    return av.VideoFrame.from_ndarray(pixels, format="rgb24")


@pytest.mark.parametrize(
    ("matrix", "shown"),
    [
        ((1, 0, 0, 1), "RGBW"),
        ((0, 1, -1, 0), "BRWG"),
        ((-1, 0, 0, -1), "WBGR"),
        ((0, -1, 1, 0), "GWRB"),
        ((-1, 0, 0, 1), "GRWB"),
        ((1, 0, 0, -1), "BWRG"),
        ((0, 1, 1, 0), "RBGW"),
        ((0, -1, -1, 0), "WGBR"),
    ],
)
def test_a_video_is_turned_and_mirrored_as_players_show_it(
    tmp_path: Path, matrix: tuple[int, int, int, int], shown: str
) -> None:
    colors = {"R": (250, 0, 0), "G": (0, 250, 0), "B": (0, 0, 250), "W": (250, 250, 250)}
    quarters = np.array([colors[name] for name in "RGBW"], np.uint8).reshape(2, 2, 3)
    path = write_video(tmp_path / "a.mp4", [quarters.repeat(32, 0).repeat(32, 1)] * 5)
    content = bytearray(path.read_bytes())
    a, b, c, d = (value << 16 for value in matrix)
    at = content.index(b"tkhd") + 44
    content[at : at + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(content)
    (frame,) = decode_clip(path, None, Bucket(width=64, height=64, frames=1), 16.0)
    centres = frame[16::32, 16::32].reshape(4, 3).astype(int)
    nearest = [min(colors, key=lambda n: np.abs(np.subtract(colors[n], c)).sum()) for c in centres]
    assert "".join(nearest) == shown


@pytest.mark.parametrize(("rotation", "corner"), [(90, (-1, 0)), (-90, (0, -1)), (180, (-1, -1))])
def test_rotation_is_applied(tmp_path: Path, rotation: int, corner: tuple[int, int]) -> None:
    pixels = np.zeros((48, 64, 3), np.uint8)
    pixels[:24, :32] = 255  # top left as stored
    path = write_video(tmp_path / "a.mp4", [pixels] * 5, Look(rotation=rotation))
    turned = rotation % 180 != 0
    bucket = Bucket(width=48 if turned else 64, height=64 if turned else 48, frames=1)
    frame = decode_clip(path, None, bucket, 16.0)[0]
    corners = {
        (y, x): int(frame[y * 5 if y else 4, x * 5 if x else 4, 0])
        for y in (0, -1)
        for x in (0, -1)
    }
    assert [where for where, value in corners.items() if value > 128] == [corner]


def test_pixels_that_are_not_square_become_square(tmp_path: Path) -> None:
    pixels = np.zeros((48, 64, 3), np.uint8)
    pixels[14:34, 22:42] = 255  # 20 x 20 stored is 40 wide as shown
    path = write_video(tmp_path / "a.mp4", [pixels] * 3, Look(pixel_aspect=Fraction(2)))
    frame = decode_clip(path, None, Bucket(width=128, height=48, frames=1), 16.0)[0, :, :, 0]
    assert (frame > 128).any(axis=0).sum() == pytest.approx(40, abs=2)
    assert (frame > 128).any(axis=1).sum() == pytest.approx(20, abs=2)


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.ts", "a.avi", "a.h264"])
def test_the_shape_of_pixels_is_known_wherever_it_stands(tmp_path: Path, name: str) -> None:
    pixels = np.zeros((48, 64, 3), np.uint8)
    pixels[14:34, 22:42] = 255
    path = write_video(tmp_path / name, [pixels] * 3, Look(pixel_aspect=Fraction(2)))
    timeline = probe.timeline_of(as_media_file(path))
    assert (timeline.width, timeline.height) == (128, 48)
    frame = decode_clip(path, None, Bucket(width=128, height=48, frames=1), 16.0)[0, :, :, 0]
    assert (frame > 128).any(axis=0).sum() == pytest.approx(40, abs=2)


@pytest.mark.parametrize("codec", ["h264", "hevc"])
@pytest.mark.parametrize("rate", [Fraction(25), Fraction(60), Fraction(24000, 1001)])
def test_a_raw_stream_is_timed_as_it_says_itself(
    tmp_path: Path, codec: str, rate: Fraction
) -> None:
    options = (("x265-params", "log-level=none"),) if codec == "hevc" else ()
    encoder = {"h264": "libx264", "hevc": "libx265"}[codec]
    look = Look(fps=rate, codec=encoder, codec_options=options)
    timeline = probe.timeline_of(as_media_file(write_ramp(tmp_path / f"a.{codec}", 30, look)))
    assert timeline.num_frames == 30
    assert timeline.end_s == pytest.approx(30 / rate, rel=1e-3)


def test_a_single_frame_that_is_said_to_last_no_time_is_decoded(tmp_path: Path) -> None:
    # Without a second frame nothing tells FFmpeg the rate of a transport stream.
    path = write_ramp(tmp_path / "a.ts", 1, Look(fps=Fraction(90000)))
    assert probe.timeline_of(as_media_file(path)).end_s < 1e-3
    assert decode_clip(path, None, Bucket(width=64, height=48, frames=1), 16.0).shape[0] == 1


@pytest.mark.parametrize("is_tall", [False, True])
def test_a_clip_is_cropped_at_its_centre_and_keeps_its_aspect(
    tmp_path: Path, is_tall: bool
) -> None:
    image = np.zeros((60, 200, 3), np.uint8)
    image[20:40, 90:110] = 255
    Image.fromarray(image.swapaxes(0, 1) if is_tall else image).save(tmp_path / "a.png")
    width, height = (30, 48) if is_tall else (48, 30)
    bucket = Bucket(width=width, height=height, frames=1)
    frame = decode_clip(tmp_path / "a.png", None, bucket, 16.0)[0]
    frame = frame.swapaxes(0, 1) if is_tall else frame
    bright = np.argwhere(frame[:, :, 0] > 128)
    assert bright.min(axis=0).tolist() == [10, 19]
    assert bright.max(axis=0).tolist() == [19, 28]


def test_what_a_picture_shows_through_is_white(tmp_path: Path) -> None:
    Image.new("RGBA", (32, 32), (0, 0, 0, 0)).save(tmp_path / "a.png")
    bucket = Bucket(width=32, height=32, frames=1)
    assert decode_clip(tmp_path / "a.png", None, bucket, 16.0).min() == 255


def test_a_16_bit_grey_keeps_its_range(tmp_path: Path) -> None:
    Image.fromarray(np.full((32, 32), 32768, np.uint16)).save(tmp_path / "a.png")
    bucket = Bucket(width=32, height=32, frames=1)
    assert decode_clip(tmp_path / "a.png", None, bucket, 16.0).mean() == pytest.approx(128, abs=1)


def test_a_gif_is_decoded(tmp_path: Path) -> None:
    frames = [Image.new("L", (64, 48), 20 + 10 * k) for k in range(17)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:], duration=60)
    pixels = decode_clip(tmp_path / "a.gif", None, SMALL, 100 / 6)
    assert pixels.mean(axis=(1, 2, 3)) == pytest.approx([20 + 10 * k for k in range(17)], abs=1)


def test_an_animated_webp_is_decoded(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (64, 48), (20 + 10 * k,) * 3) for k in range(17)]
    frames[0].save(
        tmp_path / "a.webp", save_all=True, append_images=frames[1:], duration=50, lossless=True
    )
    pixels = decode_clip(tmp_path / "a.webp", None, SMALL, 20.0)
    assert pixels.mean(axis=(1, 2, 3)) == pytest.approx([20 + 10 * k for k in range(17)], abs=1)


def test_interlaced_video_is_deinterlaced_and_loses_no_frame(tmp_path: Path) -> None:
    combs = []
    for k in range(20):
        pixels = np.zeros((96, 128, 3), np.uint8)
        pixels[0::2, 4 * k : 4 * k + 32] = 255
        pixels[1::2, 4 * k + 2 : 4 * k + 34] = 255  # the second field is half a frame later
        combs.append(pixels)
    look = Look(
        width=128,
        height=96,
        codec="mpeg2video",
        fps=Fraction(25),
        codec_options=(("flags", "+ildct+ilme"), ("b", "8000000")),
    )
    path = write_video(tmp_path / "a.mpg", combs, look)
    clip = decode_clip(path, None, Bucket(width=128, height=96, frames=17), 25.0).astype(int)
    rows = clip[8, :, :, 0]
    assert np.abs(rows[10:80:2] - rows[11:81:2]).max() < 100
    lit = [int(np.flatnonzero(frame[40, :, 0] > 128)[0]) for frame in clip]
    assert lit == pytest.approx([4 * k for k in range(17)], abs=2)


@pytest.mark.parametrize("height", [48, 720])
@pytest.mark.parametrize("is_full_range", [False, True])
@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuv420p10le", "yuv444p"])
@pytest.mark.parametrize("matrix", [None, 1, 5, 9])
def test_colors_follow_their_tag_or_the_size(
    tmp_path: Path, matrix: int | None, pix_fmt: str, is_full_range: bool, height: int
) -> None:
    """Untagged small video is BT.601; BT.709 (1), BT.601 (5), BT.2020 (9) and the range are obeyed.

    The file is written with the matrix of the standard, not with the library that reads it.
    """
    look = Look(width=64, height=height, pix_fmt=pix_fmt)
    values = stored_color((40, 200, 60), matrix or (1 if height >= 720 else 5), is_full_range)
    write_flat_color(tmp_path / "a.mp4", look, values, matrix, is_full_range)
    bucket = Bucket(width=64, height=height, frames=1)
    found = decode_clip(tmp_path / "a.mp4", None, bucket, 16.0)[0].astype(int)
    assert np.abs(found - [40, 200, 60]).max() <= 2


def test_scaling_keeps_the_level_and_the_place_of_what_it_scales(tmp_path: Path) -> None:
    """A slope stays the slope, to a grey level: not a level darker, not a pixel beside."""
    slope = np.linspace(30, 220, 256).round().astype(np.uint8)
    frame = np.broadcast_to(slope[None, :, None], (144, 256, 3)).copy()
    look = Look(width=256, height=144, codec_options=(("qp", "0"),))
    path = write_video(tmp_path / "a.mp4", [frame] * 2, look)
    for width, height in ((256, 144), (160, 90), (224, 126)):
        found = decode_clip(path, None, Bucket(width=width, height=height, frames=1), 16.0)[0]
        centres = (np.arange(width) + 0.5) * 256 / width - 0.5
        wanted = np.interp(centres, np.arange(256), slope)
        inner = slice(4, -4)
        error = (found.astype(float).mean(axis=2) - wanted)[:, inner]
        assert abs(error.mean()) < 0.3
        assert np.abs(error).max() < 2.5


def test_chroma_is_interpolated_where_nothing_is_scaled(tmp_path: Path) -> None:
    """Between two colours lie mixed ones: chroma is not repeated from pixel to pixel."""
    frame = np.zeros((48, 64, 3), np.uint8)
    frame[:, :32], frame[:, 32:] = (200, 40, 40), (40, 40, 200)
    path = write_video(tmp_path / "a.mp4", [frame] * 2, Look(codec_options=(("qp", "0"),)))
    row = decode_clip(path, None, Bucket(width=64, height=48, frames=1), 16.0)[0, 24].astype(int)
    pairs = row[24:40].reshape(8, 2, 3)
    assert (pairs[:, 0] != pairs[:, 1]).any(axis=1).sum() >= 2


def test_too_few_frames_are_refused_with_the_arithmetic(tmp_path: Path) -> None:
    path = write_ramp(tmp_path / "a.mp4", 25, Look(fps=Fraction(25)))
    message = r"25 frames were decoded, which give 16 at 16 fps; bucket 64x48x17 needs 17"
    with pytest.raises(DataError, match=message):
        decode_clip(path, None, SMALL, 16.0)


def test_frames_that_the_decoder_does_not_give_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_ramp(tmp_path / "a.mp4", 40)
    original = video_source._timed

    def lossy(*arguments: Any) -> Iterator[TimedFrame]:
        return (frame for k, frame in enumerate(original(*arguments)) if k % 3)

    monkeypatch.setattr(video_source, "_timed", lossy)
    with pytest.raises(DataError, match="frames were decoded where the file lists"):
        decode_clip(path, None, SMALL, 16.0)


@pytest.mark.parametrize(
    ("span", "is_counted", "counts"),
    [
        (
            None,
            False,
            [],
        ),  # decoding stops when the bucket is full, and nobody knows how many follow
        (None, True, [40]),
        (TimeSpan(start_s=0.5, end_s=25 / 16), False, [17]),
        (TimeSpan(start_s=0.5, end_s=2.0), True, [24]),
    ],
)
def test_frames_are_counted_where_decoding_comes_to_the_end(
    tmp_path: Path, span: TimeSpan | None, is_counted: bool, counts: list[int]
) -> None:
    path = write_ramp(tmp_path / "a.mp4", 40)
    found: list[int] = []
    alone = decode_clip(path, span, SMALL, 16.0)
    pixels = decode_clip(path, span, SMALL, 16.0, tell_count=found.append, is_counted=is_counted)
    assert found == counts
    assert np.array_equal(pixels, alone)


def test_each_frame_of_a_camera_of_a_thousand_a_second_is_counted(tmp_path: Path) -> None:
    path = write_ramp(tmp_path / "a.mp4", 99, Look(fps=Fraction(1000)))
    one = Bucket(width=64, height=48, frames=1)
    found: list[int] = []
    decode_clip(path, None, one, 16.0, tell_count=found.append, is_counted=True)
    span = TimeSpan(start_s=0.03, end_s=0.08)
    decode_clip(path, span, one, 16.0, tell_count=found.append, is_counted=True)
    assert found == [99, 50]
    assert probe.probe(path, span).num_frames == 50


def test_damaged_packets_are_refused_and_not_trained(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    noise = [rng.integers(0, 255, (48, 64, 3), np.uint8) for _ in range(40)]
    path = write_video(tmp_path / "a.mp4", noise, Look(options=(("movflags", "faststart"),)))
    content = bytearray(path.read_bytes())
    start = len(content) // 3
    content[start : start + 20000] = bytes(20000)
    path.write_bytes(content)
    with pytest.raises(DataError):
        decode_clip(path, None, Bucket(width=64, height=48, frames=33), 16.0)


def test_a_frame_covers_its_size_or_lies_within_it() -> None:
    assert scaled_size(853, 481, (640, 352), "crop") == (640, 361)
    assert scaled_size(853, 481, (640, 352), "letterbox") == (624, 352)
    assert scaled_size(48, 64, (48, 64), "crop") == (48, 64)


@pytest.mark.parametrize("is_tall", [False, True])
def test_a_letterboxed_clip_is_whole_in_the_middle_of_black(tmp_path: Path, is_tall: bool) -> None:
    image = np.full((60, 200, 3), 255, np.uint8)
    image[20:40, 90:110] = 0
    Image.fromarray(image.swapaxes(0, 1) if is_tall else image).save(tmp_path / "a.png")
    width, height = (32, 80) if is_tall else (80, 32)
    memory = np.full((1, height, width, 3), 99, np.uint8)  # another clip was there before
    bucket = Bucket(width=width, height=height, frames=1)
    frame = decode_clip(tmp_path / "a.png", None, bucket, 16.0, fit="letterbox", into=memory)[0]
    frame = frame.swapaxes(0, 1) if is_tall else frame
    assert frame[:4].max() == frame[28:].max() == 0
    assert frame[4:28, [0, -1]].min() == 255
    dark = np.argwhere(frame[4:28, :, 0] < 128)
    assert dark.min(axis=0).tolist() == [8, 36]
    assert dark.max(axis=0).tolist() == [15, 43]


def test_a_turned_video_of_repeated_frames_is_letterboxed_upright(tmp_path: Path) -> None:
    grey = np.full((48, 64, 3), 200, np.uint8)
    look = Look(rotation=90, fps=Fraction(8))
    path = write_video(tmp_path / "a.mp4", [grey] * 20, look)
    pixels = decode_clip(path, None, SMALL, 16.0, fit="letterbox")
    assert (pixels[..., 0] > 150).any(axis=1).sum(axis=1).tolist() == [36] * 17
    assert pixels[:, :, 14:50].min() > 150
    assert pixels[:, :, :14].max() == pixels[:, :, 50:].max() == 0


def test_a_stream_without_time_stamps_is_read_by_order(tmp_path: Path) -> None:
    path = write_ramp(tmp_path / "a.h264", 40, Look(fps=Fraction(25)))
    part = decode_clip(path, TimeSpan(start_s=0.4, end_s=1.1), SMALL, 25.0)
    assert frame_numbers(part) == pytest.approx(list(range(10, 27)), abs=1)
