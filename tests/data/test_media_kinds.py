"""Kinds of media that people have: codecs, containers, pictures, sound, odd clocks, bombs."""

import io
import struct
import subprocess
import sys
import textwrap
import zlib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from arachne.core.bucket import Bucket
from arachne.core.errors import DataError
from arachne.data import picture_source
from arachne.data.decode import decode_clip
from arachne.data.probe import probe
from tests.data.media import Look, frame_numbers, grey_frames, ramp, write_ramp, write_video

SMALL = Bucket(width=64, height=48, frames=17)


@pytest.mark.parametrize(
    ("name", "codec", "pix_fmt"),
    [
        ("a.mov", "prores_ks", "yuv422p10le"),
        ("a.mov", "qtrle", "rgb24"),
        ("a.mov", "png", "rgba"),
        ("a.mxf", "mpeg2video", "yuv420p"),
        ("a.mp4", "libx264", "yuv444p10le"),
        ("a.mp4", "libx265", "yuv422p12le"),
        ("a.mp4", "libx264rgb", "rgb24"),
        ("a.mkv", "ffv1", "yuv444p16le"),
        ("a.mkv", "libx264", "nv12"),
        ("a.avi", "utvideo", "gbrp"),
        ("a.avi", "mjpeg", "yuvj422p"),
        ("a.avi", "huffyuv", "yuv422p"),
        ("a.avi", "rawvideo", "yuv420p"),
        ("a.m2ts", "libx264", "yuv420p"),
        ("a.mpg", "mpeg1video", "yuv420p"),
        ("a.wmv", "wmv2", "yuv420p"),
        ("a.flv", "flv", "yuv420p"),
        ("a.ivf", "libvpx-vp9", "yuv420p"),
        ("a.obu", "libsvtav1", "yuv420p10le"),
        ("a.y4m", "rawvideo", "yuv420p"),
        ("a.hevc", "libx265", "yuv420p10le"),
    ],
)
def test_each_kind_of_video_is_decoded_right(
    tmp_path: Path, name: str, codec: str, pix_fmt: str
) -> None:
    look = Look(codec=codec, pix_fmt=pix_fmt, fps=Fraction(25), width=128, height=96)
    path = write_ramp(tmp_path / name, 30, look)
    assert probe(path).num_frames == 30
    bucket = Bucket(width=128, height=96, frames=17)
    found = frame_numbers(decode_clip(path, None, bucket, 25.0))
    assert found == pytest.approx(list(range(17)), abs=1)


@pytest.mark.parametrize(
    ("name", "mode", "kind"),
    [
        ("a.jpg", "RGB", "JPEG"),
        ("a.jpg", "L", "JPEG"),
        ("a.jpg", "CMYK", "JPEG"),
        ("a.png", "P", "PNG"),
        ("a.png", "LA", "PNG"),
        ("a.png", "1", "PNG"),
        ("a.bmp", "RGB", "BMP"),
        ("a.tif", "RGB", "TIFF"),
        ("a.webp", "RGBA", "WEBP"),
        ("a.avif", "RGB", "AVIF"),
        ("a.gif", "P", "GIF"),
        ("wrongly.mkv", "RGB", "PNG"),
    ],
)
def test_each_kind_of_picture_is_a_clip_of_one_frame(
    tmp_path: Path, name: str, mode: str, kind: str
) -> None:
    Image.new("L", (64, 48), 255).convert(mode).save(tmp_path / name, kind)
    facts = probe(tmp_path / name)
    assert (facts.width, facts.height, facts.num_frames, facts.fps) == (64, 48, 1, 0.0)
    pixels = decode_clip(tmp_path / name, None, Bucket(width=64, height=48, frames=1), 16.0)
    assert pixels.min() >= 250


def test_an_animated_png_is_decoded(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (64, 48), (20 + 10 * k,) * 3) for k in range(17)]
    frames[0].save(tmp_path / "a.png", save_all=True, append_images=frames[1:], duration=50)
    pixels = decode_clip(tmp_path / "a.png", None, SMALL, 20.0)
    assert pixels.mean(axis=(1, 2, 3)) == pytest.approx([20 + 10 * k for k in range(17)], abs=1)


@pytest.mark.parametrize(
    ("rotation", "corner"), [(90, "bottom left"), (-90, "top right"), (180, "bottom right")]
)
def test_a_turned_clip_of_oblong_pixels_comes_upright_and_square(
    tmp_path: Path, rotation: int, corner: str
) -> None:
    pixels = np.zeros((48, 64, 3), np.uint8)
    pixels[:20, :20] = 255  # top left as stored, 40 x 20 as shown before the turn
    look = Look(rotation=rotation, pixel_aspect=Fraction(2))
    path = write_video(tmp_path / "a.mp4", [pixels] * 3, look)
    facts = probe(path)
    size = (48, 128) if rotation % 180 else (128, 48)
    assert (facts.width, facts.height) == size
    bucket = Bucket(width=size[0], height=size[1], frames=1)
    lit = decode_clip(path, None, bucket, 16.0)[0, :, :, 0] > 128
    shown = (lit.any(axis=0).sum(), lit.any(axis=1).sum())
    assert shown == pytest.approx((20, 40) if rotation % 180 else (40, 20), abs=2)
    rows, columns = np.nonzero(lit)
    found = "top" if rows.mean() < size[1] / 2 else "bottom"
    found += " left" if columns.mean() < size[0] / 2 else " right"
    assert found == corner


def _write_with_sound(path: Path, num_frames: int, sound_s: float, num_streams: int = 1) -> Path:
    with av.open(str(path), "w") as container:
        video: Any = container.add_stream("libx264", rate=16) if num_frames else None
        sounds: list[Any] = [container.add_stream("aac", rate=8000) for _ in range(num_streams)]
        if video:
            video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
            for pixels in grey_frames(ramp(num_frames), Look()):
                container.mux(video.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
            container.mux(video.encode())
        for sound in sounds:
            for block in range(int(sound_s * 8000 / 1024)):
                frame = av.AudioFrame.from_ndarray(
                    np.zeros((1, 1024), np.float32), format="fltp", layout="mono"
                )
                frame.sample_rate, frame.pts = 8000, block * 1024
                container.mux(sound.encode(frame))
            container.mux(sound.encode())
    return path


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.ts"])
@pytest.mark.parametrize(("sound_s", "num_streams"), [(1.0, 1), (6.0, 1), (2.0, 2)])
def test_sound_of_any_length_has_no_effect(
    tmp_path: Path, name: str, sound_s: float, num_streams: int
) -> None:
    path = _write_with_sound(tmp_path / name, 40, sound_s, num_streams)
    facts = probe(path)
    assert facts.num_frames == 40
    assert facts.fps == pytest.approx(16.0, abs=0.05)
    found = frame_numbers(decode_clip(path, None, SMALL, 16.0))
    assert found == pytest.approx(list(range(17)), abs=1)


def test_sound_alone_is_no_video(tmp_path: Path) -> None:
    path = _write_with_sound(tmp_path / "a.mp4", 0, 1.0)
    with pytest.raises(DataError, match="it holds no video, only audio"):
        probe(path)


@pytest.mark.parametrize("name", ["a.mkv", "a.mp4"])
def test_a_clock_that_jumps_or_starts_late_has_no_effect(tmp_path: Path, name: str) -> None:
    times_ms = [5000 + 40 * k + (100_000 if k >= 10 else 0) for k in range(30)]
    look = Look(fps=Fraction(25))
    path = write_video(tmp_path / name, grey_frames(ramp(30), look), look, times_ms)
    facts = probe(path)
    assert facts.num_frames / facts.fps == pytest.approx(30 / 25, abs=0.06)
    found = frame_numbers(decode_clip(path, None, SMALL, 25.0))
    assert found == pytest.approx(list(range(17)), abs=1)


def test_a_video_without_a_frame_is_refused(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        stream: Any = container.add_stream("libx264", rate=16)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        container.start_encoding()
    with pytest.raises(DataError, match=r"no frames; its header says 0|no video"):
        probe(tmp_path / "a.mp4")


@pytest.mark.parametrize(
    ("kind", "suffix"),
    [("JPEG", "jpg"), ("PNG", "png"), ("WEBP", "webp"), ("TIFF", "tif"), ("AVIF", "avif")],
)
def test_a_picture_that_was_cut_short_is_refused(tmp_path: Path, kind: str, suffix: str) -> None:
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(buffer, kind)
    path = tmp_path / f"a.{suffix}"
    for share in (0.3, 0.6, 0.9):
        path.write_bytes(buffer.getvalue()[: int(len(buffer.getvalue()) * share)])
        with pytest.raises(DataError, match="picture cannot be decoded"):
            probe(path)


def test_an_animation_of_too_many_pixels_is_refused_before_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = [Image.new("L", (64, 48), 10 * k) for k in range(10)]
    frames[0].save(tmp_path / "a.png", save_all=True, append_images=frames[1:], duration=50)
    assert probe(tmp_path / "a.png").num_frames == 10
    monkeypatch.setattr(picture_source, "MAX_ANIMATION_PIXELS", 64 * 48 * 9)
    (tmp_path / "a.png").rename(tmp_path / "b.png")
    with pytest.raises(DataError, match=r"10 frames of 64x48; the limit is 27,648 pixels"):
        probe(tmp_path / "b.png")


def _chunk(kind: bytes, content: bytes) -> bytes:
    check = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + check


def _black_png(width: int, height: int) -> bytes:
    press = zlib.compressobj(9)
    row = bytes(1 + 3 * width)
    pixels = b"".join(press.compress(row) for _ in range(height)) + press.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", header)
        + _chunk(b"IDAT", pixels)
        + _chunk(b"IEND", b"")
    )


def _wide_gif(_path: Path) -> bytes:
    return b"GIF89a" + struct.pack("<HHBBB", 30000, 30000, 0, 0, 0) + b"\x3b"


def _billion_frames(path: Path) -> bytes:
    content = bytearray(write_ramp(path, 20).read_bytes())
    struct.pack_into(">II", content, content.index(b"stsz") + 8, 1, 10**9)
    return bytes(content)


BOMBS: dict[str, Callable[[Path], bytes]] = {
    "unfolds.png": lambda _: _black_png(30000, 4000),
    "wide.gif": _wide_gif,
    "billion.mp4": _billion_frames,
}


def test_bombs_are_rejected_within_10_seconds_and_512_mib(tmp_path: Path) -> None:
    """The largest picture that is allowed is decoded too: it takes the most memory."""
    for name, make in BOMBS.items():
        (tmp_path / name).write_bytes(make(tmp_path / "made.mp4"))
    (tmp_path / "made.mp4").unlink()
    (tmp_path / "largest.png").write_bytes(_black_png(8192, 8192))
    code = f"""
        import re, time
        from pathlib import Path
        from arachne.core.errors import DataError
        from arachne.data.probe import probe

        begin_s = time.monotonic()
        for path in sorted(Path({str(tmp_path)!r}).iterdir()):
            try:
                print(path.name, probe(path).width)
            except DataError as error:
                print(path.name, "refused")
        print(time.monotonic() - begin_s)
        # Not ru_maxrss: a new process begins with the memory of the one that started it.
        status = Path("/proc/self/status").read_text()
        print(int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) / 2**10)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], check=True, capture_output=True, text=True
    )
    *lines, seconds, mebibytes = done.stdout.splitlines()
    assert lines == [
        "billion.mp4 refused",
        "largest.png 8192",
        "unfolds.png refused",
        "wide.gif refused",
    ]
    assert float(seconds) < 10.0
    assert float(mebibytes) < 512.0
