import io
import struct
import time
import zlib
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from arachne.core.clip import TimeSpan
from arachne.core.errors import DataError
from arachne.data import video_scan
from arachne.data.cut_short import cut_short
from arachne.data.media_file import whole_file
from arachne.data.probe import probe
from arachne.data.timeline import seconds_of_stamps
from arachne.data.video_file import opened_video
from tests.data.media import Look, grey_frames, ramp, write_ramp, write_video

NTSC_FILM = Fraction(24000, 1001)


@pytest.mark.parametrize(
    ("name", "codec"),
    [("a.mp4", "libx264"), ("a.mkv", "libx264"), ("a.webm", "libvpx-vp9"), ("a.avi", "mpeg4")],
)
def test_frames_are_counted_from_packets(tmp_path: Path, name: str, codec: str) -> None:
    facts = probe(write_ramp(tmp_path / name, 60, Look(codec=codec, fps=NTSC_FILM)))
    assert facts.num_frames == 60
    assert facts.fps == pytest.approx(24000 / 1001, abs=2e-3)
    assert facts.is_estimated


def test_opening_a_video_decodes_nothing(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (720, 1280, 3), np.uint8)
    path = write_video(tmp_path / "a.mp4", [noise] * 2, Look(width=1280, height=720))
    begin_s = time.process_time()
    with opened_video(whole_file(path)) as (container, _):
        opened_s = time.process_time() - begin_s
        next(container.decode(video=0))
        decoded_s = time.process_time() - begin_s - opened_s
    assert opened_s < decoded_s / 3  # FFmpeg's own way decodes the first frame


def test_a_header_that_says_one_frame_is_only_a_hint(tmp_path: Path) -> None:
    path = write_ramp(tmp_path / "a.avi", 60, Look(codec="mpeg4"))
    content = bytearray(path.read_bytes())
    at = content.index(b"strh") + 8 + 32  # dwLength of the stream header
    assert struct.unpack_from("<I", content, at) == (60,)
    struct.pack_into("<I", content, at, 1)
    path.write_bytes(content)
    assert probe(path).num_frames == 60


def test_a_header_that_claims_a_billion_frames_is_refused(tmp_path: Path) -> None:
    path = write_ramp(tmp_path / "a.mp4", 20)
    content = bytearray(path.read_bytes())
    struct.pack_into(">II", content, content.index(b"stsz") + 8, 1, 10**9)
    path.write_bytes(content)
    begin_s = time.monotonic()
    with pytest.raises(DataError, match=r"no frames|cut short"):
        probe(path)
    assert time.monotonic() - begin_s < 10.0


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.avi", "a.mpg", "a.gif"])
def test_a_file_that_lost_its_last_third_is_refused(tmp_path: Path, name: str) -> None:
    codec = {"a.avi": "mpeg4", "a.mpg": "mpeg2video", "a.gif": "gif"}.get(name, "libx264")
    options = (("movflags", "faststart"),) if name == "a.mp4" else ()
    rng = np.random.default_rng(0)
    noise = [rng.integers(0, 255, (48, 64, 3), np.uint8) for _ in range(60)]
    look = Look(
        codec=codec,
        fps=Fraction(25),
        options=options,
        pix_fmt="rgb8" if name == "a.gif" else "yuv420p",
    )
    path = write_video(tmp_path / name, noise, look)
    assert probe(path).num_frames == 60
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])
    with pytest.raises(DataError, match="cut short"):
        probe(path)


@pytest.mark.parametrize(
    ("name", "options", "kept_share", "message"),
    [
        ("a.mp4", "", 0.3, r"cut short: its box 'mdat' lacks [\d,]+ of [\d,]+ bytes"),
        ("a.mp4", "", 0.66, r"cut short: its box 'moov' lacks"),
        ("a.mp4", "faststart", 0.1, r"cut short: its box 'moov' lacks"),
        ("a.mp4", "frag_keyframe+empty_moov", 0.1, r"cut short: its box 'moov' lacks"),
        ("a.mov", "", 0.5, r"cut short: its box 'mdat' lacks"),
        ("a.mkv", "", 0.02, r"cut short: its segment lacks"),
        ("a.mkv", "", 0.97, r"cut short: its segment lacks [\d,]+ of [\d,]+ bytes"),
        ("a.webm", "", 0.97, r"cut short: its segment lacks"),
    ],
)
def test_a_container_says_where_it_was_cut(
    tmp_path: Path, name: str, options: str, kept_share: float, message: str
) -> None:
    look = Look(
        codec="libvpx" if name == "a.webm" else "libx264",
        options=(("movflags", options),) if options else (),
    )
    path = write_ramp(tmp_path / name, 60, look)
    assert probe(path).num_frames == 60
    content = path.read_bytes()
    path.write_bytes(content[: round(len(content) * kept_share)])
    with pytest.raises(DataError, match=message):
        probe(path)


@pytest.mark.parametrize("is_size_known", [True, False])
def test_a_recording_that_never_got_its_index_is_said_to_be_cut_short(
    tmp_path: Path, is_size_known: bool
) -> None:
    content = bytearray(write_ramp(tmp_path / "a.mp4", 20).read_bytes())
    if not is_size_known:
        struct.pack_into(">I", content, content.index(b"mdat") - 4, 0)
    at = content.index(b"moov") - 4
    (tmp_path / "a.mp4").write_bytes(content[:at])
    with pytest.raises(DataError, match=r"cut short: its index \(moov\) is missing"):
        probe(tmp_path / "a.mp4")


def test_an_mp4_that_is_whole_but_damaged_is_not_said_to_be_cut_short(tmp_path: Path) -> None:
    content = bytearray(write_ramp(tmp_path / "a.mp4", 20).read_bytes())
    at = content.index(b"moov") + 4
    content[at:] = bytes(len(content) - at)
    (tmp_path / "a.mp4").write_bytes(content)
    with pytest.raises(DataError) as caught:
        probe(tmp_path / "a.mp4")
    assert "cut short" not in str(caught.value)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    magic=st.sampled_from([b"\0\0\0\x10ftyp", b"\x1a\x45\xdf\xa3", b"RIFF", b"GIF89a", b""]),
    rest=st.binary(max_size=200),
)
def test_any_bytes_give_a_reason_or_none(tmp_path: Path, magic: bytes, rest: bytes) -> None:
    (tmp_path / "a").write_bytes(magic + rest)
    fault = cut_short(whole_file(tmp_path / "a"))
    assert fault is None or fault.startswith("the file is cut short: ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes"),
        (b"this is no video\n" * 99, "no video or picture"),
        (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", "no video or picture"),
        (b"ffconcat version 1.0\nfile a.mp4\n", "no video or picture"),
    ],
)
def test_what_is_no_video_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        probe(path)


@pytest.mark.parametrize("codec", ["libx264", "mpeg2video"])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_a_transport_stream_of_few_packets_is_one(tmp_path: Path, codec: str, count: int) -> None:
    look = Look(codec=codec, fps=Fraction(25))
    path = write_ramp(tmp_path / "a.ts", count, look)
    assert path.stat().st_size < 8000  # FFmpeg by itself fails on some, and mistakes others
    assert probe(path).num_frames == count
    with opened_video(whole_file(path)) as (container, _):
        assert container.format.name == "mpegts"


def test_a_transport_stream_that_ends_early_is_not_said_to_lack_an_index(tmp_path: Path) -> None:
    path = write_ramp(tmp_path / "a.ts", 1, Look(codec="mpeg2video", fps=Fraction(25)))
    path.write_bytes(path.read_bytes()[:470])
    with pytest.raises(DataError, match="cut short: it ends before a whole frame of video"):
        probe(path)


def test_a_jpeg_named_mp4_is_a_still(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    Image.new("RGB", (80, 60)).save(path, "JPEG")
    facts = probe(path)
    assert (facts.width, facts.height, facts.num_frames, facts.fps) == (80, 60, 1, 0.0)


def test_a_turned_photo_is_measured_upright(tmp_path: Path) -> None:
    image = Image.new("RGB", (80, 60))
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(tmp_path / "a.jpg", exif=exif)
    facts = probe(tmp_path / "a.jpg")
    assert (facts.width, facts.height) == (60, 80)


@pytest.mark.parametrize(
    ("rotation", "pixel_aspect", "size"),
    [
        (90, None, (48, 64)),
        (-90, None, (48, 64)),
        (180, None, (64, 48)),
        (None, Fraction(3, 2), (96, 48)),
        (90, Fraction(3, 2), (48, 96)),
    ],
)
def test_size_is_that_of_the_upright_frame(
    tmp_path: Path,
    rotation: int | None,
    pixel_aspect: Fraction | None,
    size: tuple[int, int],
) -> None:
    look = Look(rotation=rotation, pixel_aspect=pixel_aspect)
    facts = probe(write_ramp(tmp_path / "a.mp4", 5, look))
    assert (facts.width, facts.height) == size


def test_a_variable_rate_gives_its_mean(tmp_path: Path) -> None:
    times_ms = [100 * i for i in range(20)] + [2000 + 33 * i for i in range(20)]
    path = write_video(tmp_path / "a.mp4", grey_frames(ramp(40), Look()), Look(), times_ms)
    facts = probe(path)
    assert facts.num_frames / facts.fps == pytest.approx(2.66, abs=0.05)


def test_a_span_counts_the_frames_that_begin_in_it(tmp_path: Path) -> None:
    path = write_ramp(tmp_path / "a.mp4", 100, Look(fps=Fraction(25)))
    facts = probe(path, TimeSpan(start_s=1.0, end_s=3.5))
    assert facts.num_frames == 63
    assert facts.fps == pytest.approx(25.0)


def test_a_span_after_the_end_is_refused(tmp_path: Path) -> None:
    path = write_ramp(tmp_path / "a.mp4", 16)
    with pytest.raises(DataError, match=r"begins after the file's end at 1\.00 s"):
        probe(path, TimeSpan(start_s=2.0, end_s=3.0))


def test_many_spans_of_one_file_scan_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_ramp(tmp_path / "a.mp4", 64)
    opened: list[Path] = []
    original = video_scan.opened_video
    monkeypatch.setattr(
        video_scan, "opened_video", lambda path: (opened.append(path), original(path))[1]
    )
    for start in range(30):
        probe(path, TimeSpan(start_s=start / 10, end_s=start / 10 + 0.5))
    assert len(opened) == 1


def test_a_file_that_was_replaced_is_scanned_again(tmp_path: Path) -> None:
    path = write_ramp(tmp_path / "a.mp4", 16)
    assert probe(path).num_frames == 16
    write_ramp(path, 24)
    assert probe(path).num_frames == 24


def _empty_png(width: int, height: int, packed: bytes = b"") -> bytes:
    """A PNG, without its pixels unless they are given."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", packed or zlib.compress(b"\0" * 1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b"")


def test_a_video_that_is_too_wide_is_refused(tmp_path: Path) -> None:
    look = Look(codec="mjpeg", pix_fmt="yuvj420p", width=16400, height=16)
    path = write_ramp(tmp_path / "a.avi", 2, look)
    with pytest.raises(DataError, match=r"16400x16; the limit is 16384"):
        probe(path)


def test_a_packet_that_unfolds_to_gigabytes_is_refused(tmp_path: Path) -> None:
    """The container says 64x48; only the packet says otherwise."""
    press = zlib.compressobj()
    row = bytes(1 + 3 * 9000)
    pixels = b"".join(press.compress(row) for _ in range(9000)) + press.flush()
    bomb = _empty_png(9000, 9000, pixels)
    assert len(bomb) < 400_000
    with av.open(str(tmp_path / "a.avi"), "w") as container:
        stream = container.add_stream("png", rate=16)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "rgb24"
        for index in range(4):
            packet = av.Packet(bomb)
            packet.stream, packet.is_keyframe = stream, True
            packet.pts = packet.dts = index
            packet.time_base = Fraction(1, 16)
            container.mux(packet)
    # The decoder itself refuses: it never holds the frame that `check_frame_size` would refuse.
    with pytest.raises(DataError, match=r"cannot be read as a video|0x0 pixels"):
        probe(tmp_path / "a.avi")


@pytest.mark.parametrize("size", [(30000, 30000), (10000, 9500), (16385, 16)])
def test_a_picture_bomb_is_refused_before_decoding(tmp_path: Path, size: tuple[int, int]) -> None:
    (tmp_path / "a.png").write_bytes(_empty_png(*size))
    with pytest.raises(DataError, match=r"limit|exceeds"):
        probe(tmp_path / "a.png")


def test_a_damaged_picture_is_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(buffer, "PNG")
    (tmp_path / "a.png").write_bytes(buffer.getvalue()[:4000])
    with pytest.raises(DataError, match="picture cannot be decoded"):
        probe(tmp_path / "a.png")


def test_an_animated_webp_has_its_times(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (32, 32), (value, 0, 0)) for value in range(0, 200, 20)]
    frames[0].save(tmp_path / "a.webp", save_all=True, append_images=frames[1:], duration=50)
    facts = probe(tmp_path / "a.webp")
    assert facts.num_frames == 10
    assert facts.fps == pytest.approx(20.0)


@pytest.mark.parametrize("missing", [1, 30, 59])
def test_a_frame_that_is_left_out_is_seen_in_coarse_ticks_too(missing: int) -> None:
    pts = np.array([stamp for stamp in range(61) if stamp != missing])
    times_s, _ = seconds_of_stamps(pts, Fraction(1, 16), Fraction(60 * 16, 61), 1)
    assert times_s == pytest.approx(pts / 16)


def test_a_jump_of_the_clock_is_closed_and_a_held_frame_is_not() -> None:
    tick = Fraction(1, 1000)
    jump = np.array([0, 40, 80, 100_080, 100_120])
    times_s, end_s = seconds_of_stamps(jump, tick, None, 40)
    assert times_s == pytest.approx([0.0, 0.04, 0.08, 0.12, 0.16])
    assert end_s == pytest.approx(0.2)
    held = np.array([0, 40, 80, 5_080, 5_120])
    assert seconds_of_stamps(held, tick, None, 40)[0][-1] == pytest.approx(5.12)
