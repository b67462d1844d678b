"""Media as people have it, made on the spot: good, odd, damaged and hostile, with what is right.

Every case names the row of conditions it stands for, and either the shape and the frames that it
must have after it was prepared at 16 fps, at most 64 x 64 pixels, in lengths of `LENGTHS`, or why
it must be quarantined. Frames of a ramp carry their number as their grey.
"""

import io
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.stream import Disposition
from PIL import Image

from tests.data.media import Look, grey_frames, ramp, write_ramp, write_video

FPS = 16.0
RESOLUTION = 64
LENGTHS = (1, 17, 33, 61, 65)
NTSC_FILM = Fraction(24000, 1001)
STILL = 40
"""The number that pictures carry, as their grey."""

Make = Callable[[Path], object]


@dataclass(frozen=True, kw_only=True)
class MediaCase:
    """One file, and what is right for it.

    Attributes:
        name: Its path in the dataset.
        row: The condition that it stands for.
        make: Writes it at a path; None writes nothing.
        span: The part that the dataset asks for.
        bucket: The shape that it must have; empty if it must be quarantined.
        arithmetic: What its row must say of frames and rates.
        shown: Which frames of the source the clip must hold.
        reason: Words that the reason must hold.
    """

    name: str
    row: str
    make: Make | None
    span: tuple[float, float] | None = None
    bucket: str = ""
    arithmetic: str = ""
    shown: Sequence[float] = ()
    reason: str = ""


def _kept(
    name: str,
    row: str,
    make: Make,
    bucket: str,
    arithmetic: str,
    shown: Sequence[float] | None = None,
    span: tuple[float, float] | None = None,
) -> MediaCase:
    """Where `shown` is left out, the source has 16 fps, and the clip its first frames."""
    frames = int(bucket.split("x")[2])
    return MediaCase(
        name=name,
        row=row,
        make=make,
        span=span,
        bucket=bucket,
        arithmetic=arithmetic,
        shown=range(frames) if shown is None else shown,
    )


def _bad(
    name: str,
    row: str,
    make: Make | None,
    reason: str,
    span: tuple[float, float] | None = None,
) -> MediaCase:
    return MediaCase(name=name, row=row, make=make, span=span, reason=reason)


def _at(fps: float, frames: int) -> list[float]:
    """The source's frame at k / 16 s; half way between two, either is right."""
    return [k * fps / FPS for k in range(frames)]


def _ramp(count: int, **look: Any) -> Make:
    return lambda path: write_ramp(path, count, Look(**look))


def _kind(name: str, row: str, codec: str, pix_fmt: str = "yuv420p", **look: Any) -> MediaCase:
    """A kind of video that must be read like any other."""
    make = _ramp(20, codec=codec, pix_fmt=pix_fmt, **look)
    return _kept(name, row, make, "64x48x17", "20f@16 → 20f@16 → 17")


def _changed(change: Callable[[bytearray], object], make: Make) -> Make:
    """A file whose bytes are changed once it is made; a change that returns bytes replaces them."""

    def write(path: Path) -> None:
        make(path)
        content = bytearray(path.read_bytes())
        changed = change(content)
        path.write_bytes(content if changed is None else changed)  # type: ignore[arg-type]

    return write


def _cut(share: float, make: Make) -> Make:
    return _changed(lambda content: bytes(content[: int(len(content) * share)]), make)


def _content(content: bytes | str) -> Make:
    data = content.encode() if isinstance(content, str) else content
    return lambda path: path.write_bytes(data)


def _noise(count: int, **look: Any) -> Make:
    """Frames that no codec makes small, so that every byte of the file matters."""
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 255, (48, 64, 3), np.uint8) for _ in range(count)]
    return lambda path: write_video(path, frames, Look(fps=Fraction(25), **look))


def _timed(times_ms: Sequence[int], **look: Any) -> Make:
    count = len(times_ms)
    return lambda path: write_video(path, grey_frames(ramp(count), Look()), Look(**look), times_ms)


def _picture(kind: str, mode: str = "RGB", size: tuple[int, int] = (64, 48), **save: Any) -> Make:
    def write(path: Path) -> None:
        image = Image.new("L", size, ramp(STILL + 1)[-1]).convert(mode)
        image.save(path, kind, **save)

    return write


def _animation(kind: str, count: int, duration_ms: int) -> Make:
    def write(path: Path) -> None:
        frames = [Image.new("RGB", (64, 48), (value,) * 3) for value in ramp(count)]
        lossless = {"lossless": True} if kind == "WEBP" else {}
        frames[0].save(
            path, kind, save_all=True, append_images=frames[1:], duration=duration_ms, **lossless
        )

    return write


def _turned_photo(path: Path) -> None:
    image = Image.new("RGB", (64, 48), (ramp(STILL + 1)[-1],) * 3)
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(path, "JPEG", exif=exif)


def _says_frames(count: int) -> Make:
    """An AVI whose stream header claims so many frames."""

    def change(content: bytearray) -> None:
        struct.pack_into("<I", content, content.index(b"strh") + 8 + 32, count)

    return _changed(change, _ramp(60, codec="mpeg4"))


def _billion_samples(content: bytearray) -> None:
    struct.pack_into(">II", content, content.index(b"stsz") + 8, 1, 10**9)


def _blank_third(content: bytearray) -> None:
    start = len(content) // 3
    content[start : start + len(content) // 3] = bytes(len(content) // 3)


def _without_moov(content: bytearray) -> bytes:
    return bytes(content[: content.index(b"moov") - 4])


def _blank_moov(content: bytearray) -> None:
    at = content.index(b"moov") + 4
    content[at:] = bytes(len(content) - at)


def _turned_by(degrees: float) -> Make:
    """A display matrix of any angle, written over that of a quarter turn."""

    def change(content: bytearray) -> None:
        at = content.index(b"tkhd") + 4 + 4 + 36
        cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
        one = 1 << 16
        first = (round(cos * one), round(sin * one), 0, round(-sin * one), round(cos * one))
        struct.pack_into(">5i", content, at, *first)

    return _changed(change, _ramp(20, rotation=90))


def _with_sound(num_frames: int, sound_s: float, num_streams: int = 1) -> Make:
    def write(path: Path) -> None:
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
                    silence = np.zeros((1, 1024), np.float32)
                    frame = av.AudioFrame.from_ndarray(silence, format="fltp", layout="mono")
                    frame.sample_rate, frame.pts = 8000, block * 1024
                    container.mux(sound.encode(frame))
                container.mux(sound.encode())

    return write


def _with_cover(path: Path) -> None:
    """Music with its cover, which players show as a picture."""
    with av.open(str(path), "w") as container:
        sound: Any = container.add_stream("aac", rate=8000)
        cover: Any = container.add_stream("mjpeg", rate=1)
        cover.width, cover.height, cover.pix_fmt = 64, 48, "yuvj420p"
        cover.disposition = Disposition.attached_pic
        picture = np.zeros((48, 64, 3), np.uint8)
        container.mux(cover.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(cover.encode())
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.sample_rate, frame.pts = 8000, 0
        container.mux(sound.encode(frame))
        container.mux(sound.encode())


def _says_any_still(content: bytearray) -> None:
    """The brand of a still of any coding, as some programs write it."""
    content[8:12] = b"mif1"


def _no_frames(path: Path) -> None:
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=16)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        container.start_encoding()


def _two_videos(path: Path) -> None:
    """The first stream counts."""
    with av.open(str(path), "w") as container:
        streams: list[Any] = [container.add_stream("libx264", rate=16) for _ in range(2)]
        for stream in streams:
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for stream, values in zip(streams, (ramp(20), [200] * 20), strict=True):
            for pixels in grey_frames(values, Look()):
                container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
            container.mux(stream.encode())


def _joined(path: Path, *, second: Look) -> None:
    """Two recordings, one behind the other."""
    parts = []
    for index, look in enumerate((Look(), second)):
        part = path.with_name(f"{index}-{path.name}")
        parts.append(write_ramp(part, 20, look).read_bytes())
        part.unlink()
    path.write_bytes(b"".join(parts))


def _copied_from_1_s(path: Path) -> None:
    """A video that was cut without being encoded anew: what is before 1 s is there, but hidden."""
    whole = path.with_name(f"whole-{path.name}")
    write_ramp(whole, 40, Look(gop=100))
    with av.open(str(whole)) as source, av.open(str(path), "w") as container:
        (stream,) = source.streams.video
        copy = container.add_stream_from_template(stream)
        for packet in source.demux(stream):
            if packet.pts is not None and packet.dts is not None and stream.time_base is not None:
                second = round(1 / stream.time_base)
                packet.pts, packet.dts = packet.pts - second, packet.dts - second
                packet.stream = copy
                container.mux(packet)
    whole.unlink()


def _unstamped(path: Path) -> None:
    """All frames at once, as a tool writes them that sets no times."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=16)
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = 64, 48, "yuv420p", 8_000_000
        for pixels in grey_frames(ramp(20), Look()):
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                packet.pts = packet.dts = 0
                container.mux(packet)
        for packet in stream.encode():
            packet.pts = packet.dts = 0
            container.mux(packet)


def _clock_set_back(path: Path) -> None:
    """Two recordings of a transport stream, joined."""
    _joined(path, second=Look())
    _count_on(path)


def _clock_set_back_within(path: Path) -> None:
    """The same, where the second one's clock begins within the first, after its only keyframe."""
    parts = []
    for index, first_ms in enumerate((0, 125)):
        part = path.with_name(f"{index}-{path.name}")
        times_ms = [first_ms + round(62.5 * k) for k in range(20)]
        write_video(part, grey_frames(ramp(20), Look()), Look(gop=100), times_ms)
        parts.append(part.read_bytes())
        part.unlink()
    path.write_bytes(b"".join(parts))
    _count_on(path)


def _count_on(path: Path) -> None:
    """Count the packets of a transport stream from its beginning to its end.

    Source of the header's bits: ISO/IEC 13818-1, 2.4.3.2.
    """
    content, counts = bytearray(path.read_bytes()), dict[int, int]()
    for at in range(0, len(content), 188):
        stream, has_payload = (content[at + 1] & 31, content[at + 2]), content[at + 3] & 16
        if has_payload:
            key = stream[0] << 8 | stream[1]
            count = counts.get(key, 0)
            content[at + 3] = content[at + 3] & 0xF0 | count
            counts[key] = (count + 1) % 16
    path.write_bytes(content)


def _interlaced(path: Path) -> None:
    look = Look(codec="mpeg2video", fps=Fraction(25), codec_options=(("flags", "+ildct+ilme"),))
    write_ramp(path, 30, look)


def _chunk(kind: bytes, content: bytes) -> bytes:
    check = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + check


def black_png(width: int, height: int, *extra: bytes) -> bytes:
    """A PNG that is tiny as a file; `extra` are chunks before its pixels."""
    press = zlib.compressobj(9)
    row = bytes(1 + 3 * width)
    pixels = b"".join(press.compress(row) for _ in range(height)) + press.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [_chunk(b"IHDR", header), *extra, _chunk(b"IDAT", pixels), _chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _empty_png(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds no pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = _chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + data + _chunk(b"IEND", b"")


def _packet_bomb(path: Path) -> None:
    """The container says 64x48; its packets unfold to 9000x9000."""
    bomb = black_png(9000, 9000)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("png", rate=16)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "rgb24"
        for index in range(4):
            packet = av.Packet(bomb)
            packet.stream, packet.is_keyframe = stream, True
            packet.pts = packet.dts = index
            packet.time_base = Fraction(1, 16)
            container.mux(packet)


def _wide_gif(path: Path) -> None:
    path.write_bytes(b"GIF89a" + struct.pack("<HHBBB", 30000, 30000, 0, 0, 0) + b"\x3b")


def _link(target: str) -> Make:
    return lambda path: path.symlink_to(target)


def _cut_picture(kind: str, share: float) -> Make:
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(buffer, kind)
    return _content(buffer.getvalue()[: int(buffer.tell() * share)])


_LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n"
_HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(999)
_A20 = "20f@16 → 20f@16 → 17"
_A24 = "24f@16 → 24f@16 → 17"
_FAST = (("movflags", "faststart"),)
_NO_VIDEO = "no video or picture of a known format"

HEADERS = (
    _kept("says-1.avi", "M1", _says_frames(1), "64x48x33", "60f@16 → 60f@16 → 33"),
    _kept("says-0.avi", "M1", _says_frames(0), "64x48x33", "60f@16 → 60f@16 → 33"),
    _kept("no-count.mkv", "M1", _ramp(60), "64x48x33", "60f@16 → 60f@16 → 33"),
    _kept(
        "live.mkv", "M1", _ramp(60, options=(("live", "1"),)), "64x48x33", "60f@16 → 60f@16 → 33"
    ),
    _kept(
        "fragments.mp4",
        "M1",
        _ramp(60, options=(("movflags", "frag_keyframe+empty_moov"),)),
        "64x48x33",
        "60f@16 → 60f@16 → 33",
    ),
    _kept(
        "headless.h264",
        "M1",
        _ramp(60, fps=Fraction(25)),
        "64x48x33",
        "60f@25 → 38f@16 → 33",
        _at(25, 33),
    ),
)

DAMAGED = (
    _bad("cut.mp4", "M2", _cut(2 / 3, _noise(60, options=_FAST)), "cut short"),
    _bad("cut-late-index.mp4", "M2", _cut(2 / 3, _noise(60)), "cut short: its box 'mdat' lacks"),
    _bad("cut.mkv", "M2", _cut(2 / 3, _noise(60)), "cut short: its segment lacks"),
    _bad("cut.webm", "M2", _cut(2 / 3, _noise(60, codec="libvpx")), "cut short: its segment lacks"),
    _bad("cut.avi", "M2", _cut(2 / 3, _noise(60, codec="mpeg4")), "cut short"),
    _bad("cut.gif", "M2", _cut(2 / 3, _noise(60, codec="gif", pix_fmt="rgb8")), "cut short"),
    _bad("cut.jpg", "M2", _cut_picture("JPEG", 2 / 3), "picture cannot be decoded"),
    _bad("cut.png", "M2", _cut_picture("PNG", 2 / 3), "picture cannot be decoded"),
    _bad("cut.webp", "M2", _cut_picture("WEBP", 2 / 3), "picture cannot be decoded"),
    _bad("nothing.mp4", "M2", _content(b""), "the file has 0 bytes"),
    _bad("nothing.jpg", "M2", _content(b""), "the file has 0 bytes"),
    _bad("photo.mp4", "M2", _picture("JPEG"), "is a picture, though it is called"),
    _bad("photo.webm", "M2", _picture("PNG"), "is a picture, though it is called"),
    _bad("text.mp4", "M2", _content("this is no video\n" * 99), _NO_VIDEO),
    _bad("page.mp4", "M2", _content("<!DOCTYPE html><html>404</html>" * 9), _NO_VIDEO),
    _bad("archive.mp4", "M2", _content(b"PK\3\4" + bytes(range(256)) * 9), _NO_VIDEO),
    _bad("pointer.mp4", "M2", _content(_LFS_POINTER), "a pointer of Git LFS .* git lfs pull"),
    _bad("pointer.jpg", "M2", _content(_LFS_POINTER), "a pointer of Git LFS"),
    _bad("random.mp4", "M2", _content(np.random.default_rng(1).bytes(5000)), "video"),
    _bad("no-frames.mp4", "M2", _no_frames, "no frames|no video"),
    _bad("unfinished.mp4", "M2", _changed(_without_moov, _ramp(20)), r"its index \(moov\)"),
    _bad("no-index.mp4", "M2", _changed(_blank_moov, _ramp(20)), "video"),
    _bad("holes.mp4", "M2", _changed(_blank_third, _noise(60, options=_FAST)), "damaged|read"),
    _bad("holes.mkv", "M2", _changed(_blank_third, _noise(60)), "damaged|read|decoded|frames"),
    _bad(
        "grows.h264",
        "M2",
        lambda path: _joined(path, second=Look(width=96, height=80)),
        "change from 64x48 to 96x80",
    ),
)

LENGTH = (
    _kept(
        "film.mp4",
        "M3",
        _ramp(101, fps=NTSC_FILM),
        "64x48x65",
        "101f@23.976 → 67f@16 → 65",
        _at(float(NTSC_FILM), 65),
    ),
    _kept("exactly.mp4", "M4", _ramp(65), "64x48x65", "65f@16 → 65f@16 → 65"),
    _kept("one-less.mp4", "M4", _ramp(64), "64x48x61", "64f@16 → 64f@16 → 61"),
    _kept("short.mp4", "M4", _ramp(16), "64x48x1", "16f@16 → 16f@16 → 1"),
    _kept("one.mp4", "M4", _ramp(1), "64x48x1", "1f"),
    _kept(
        "slow.mp4",
        "M4",
        _ramp(20, fps=Fraction(8)),
        "64x48x33",
        "20f@8 → 40f@16 → 33",
        [k // 2 for k in range(33)],
    ),
    _kept(
        "fast.mp4",
        "M4",
        _ramp(80, fps=Fraction(64)),
        "64x48x17",
        "80f@64 → 20f@16 → 17",
        range(0, 68, 4),
    ),
    _kept(
        "span.mp4",
        "M4",
        _ramp(90),
        "64x48x33",
        "40f@16 → 40f@16 → 33",
        range(16, 49),
        span=(1.0, 3.5),
    ),
    _kept("past-end.mkv", "M4", _ramp(60), "64x48x17", "28f@16", range(32, 49), span=(2.0, 9.0)),
    _kept("quick.mkv", "M4", _ramp(99, fps=Fraction(1000)), "64x48x1", "99f@1000 → 1f@16", [0]),
    _kept(
        "quick-span.mkv",
        "M4",
        _ramp(99, fps=Fraction(1000)),
        "64x48x1",
        "50f@1000 → 1f@16",
        [30],
        span=(0.03, 0.08),
    ),
    _bad("after.mp4", "M4", _ramp(20), "begins after the file's end", span=(5.0, 6.0)),
)

SIZES = (
    _kept("turned-90.mp4", "M6", _ramp(20, rotation=90), "48x64x17", _A20),
    _kept("turned-270.mp4", "M6", _ramp(20, rotation=-90), "48x64x17", _A20),
    _kept("turned-180.mp4", "M6", _ramp(20, rotation=180), "64x48x17", _A20),
    _kept("turned.mov", "M6", _ramp(20, rotation=90), "48x64x17", _A20),
    _bad("turned-30.mp4", "M6", _turned_by(30), "rotated by .* only quarter turns"),
    _kept("wide-pixels.mp4", "M6", _ramp(20, pixel_aspect=Fraction(2)), "112x32x17", _A20),
    _kept(
        "turned-wide-pixels.mp4",
        "M6",
        _ramp(20, pixel_aspect=Fraction(2), rotation=90),
        "32x112x17",
        _A20,
    ),
    _kept("turned-photo.jpg", "M6", _turned_photo, "48x64x1", "1f", [STILL]),
    _kept(
        "853x481.mp4", "M8", _ramp(20, width=853, height=481, pix_fmt="yuv444p"), "80x48x17", _A20
    ),
    _bad("1x1.png", "M8", _picture("PNG", size=(1, 1)), "width 1.0 is below 16"),
    _bad(
        "1x1.mkv", "M8", _ramp(20, width=1, height=1, codec="ffv1", pix_fmt="yuv444p"), "is below"
    ),
    _bad(
        "8192x16.mp4",
        "M8",
        _ramp(3, width=8192, height=16),
        "length|height 2.8 is below 16",
    ),
    _bad("8192x16.png", "M8", _picture("PNG", size=(8192, 16)), "height 2.8 is below 16"),
    _kept("odd.mkv", "M8", _ramp(20, width=65, height=49, pix_fmt="yuv444p"), "64x48x17", _A20),
)

_VARIABLE_MS = [100 * i for i in range(20)] + [2000 + round(i * 100 / 3) for i in range(20)]
_VARIABLE_SHOWN = [
    min(range(40), key=lambda i: (abs(_VARIABLE_MS[i] - 1000 * k / FPS), i)) for k in range(33)
]

CLOCKS = (
    _kept("variable.mp4", "M7", _timed(_VARIABLE_MS), "64x48x33", "40f@", _VARIABLE_SHOWN),
    _kept("at-once.mkv", "M7", _timed([0] * 9 + [63, 125]), "64x48x1", "11f@", [0]),
    _kept("variable.mkv", "M7", _timed(_VARIABLE_MS), "64x48x33", "40f@", _VARIABLE_SHOWN),
    _kept(
        "late.mkv",
        "M10",
        _timed([5000 + round(62.5 * k) for k in range(20)]),
        "64x48x17",
        _A20,
    ),
    _kept(
        "jump.mkv",
        "M10",
        _timed([40 * k + (100_000 if k >= 10 else 0) for k in range(30)], fps=Fraction(25)),
        "64x48x17",
        "30f@25 → 19f@16 → 17",
        _at(25, 17),
    ),
    _kept(
        "jump.ts",
        "M10",
        _timed([40 * k + (100_000 if k >= 10 else 0) for k in range(30)], fps=Fraction(25)),
        "64x48x17",
        "30f@25 → 19f@16 → 17",
        _at(25, 17),
    ),
    _kept(
        "below-zero.ts",
        "M10",
        _timed(
            [round(62.5 * k) - 1250 for k in range(20)],
            options=(("avoid_negative_ts", "disabled"), ("muxdelay", "0"), ("muxpreload", "0")),
        ),
        "64x48x17",
        "20f@15.987 → 20f@16 → 17",
    ),
    _kept("unstamped.mp4", "M10", _unstamped, "64x48x17", _A20),
    _kept("copied.mp4", "M10", _copied_from_1_s, "64x48x17", _A24, range(16, 33)),
    _kept("copied.mov", "M10", _copied_from_1_s, "64x48x17", _A24, range(16, 33)),
    _kept(
        "set-back.ts",
        "M10",
        _clock_set_back,
        "64x48x33",
        "40f@16",
        [at if at < 20 else at - 20 for at in range(33)],
    ),
    _kept(
        "set-back-within.ts",
        "M10",
        _clock_set_back_within,
        "64x48x33",
        "40f@15.987 → 40f@16 → 33",
        [at if at < 20 else at - 20 for at in range(33)],
    ),
    _bad(
        "aspects.h264",
        "M10",
        lambda path: _joined(path, second=Look(pixel_aspect=Fraction(2))),
        "frames change from 64x48 to 128x48",
    ),
    _kept(
        "joined.h264",
        "M10",
        lambda path: _joined(path, second=Look(fps=Fraction(25))),
        "64x48x17",
        "40f@25 → 25f@16 → 17",
        [at if at < 20 else at - 20 for at in _at(25, 17)],
    ),
    _kept("no-sound.mp4", "M10", _ramp(20), "64x48x17", _A20),
    _kept("short-sound.mp4", "M10", _with_sound(20, 0.6), "64x48x17", _A20),
    _kept("long-sound.mkv", "M10", _with_sound(20, 5.0), "64x48x17", _A20),
    _kept("two-sounds.ts", "M10", _with_sound(20, 1.0, 2), "64x48x17", _A20),
    _kept("two-videos.mkv", "M10", _two_videos, "64x48x17", _A20),
    _bad("album.mp4", "M10", _with_cover, "only audio and a cover picture"),
    _bad("sound.mp4", "M10", _with_sound(0, 1.0), "it holds no video, only audio"),
)

KINDS = (
    _kind("10-bit.mkv", "M9", "libx265", "yuv420p10le"),
    _kind("12-bit.mp4", "M9", "libx265", "yuv422p12le"),
    _kind("high-10.mp4", "M9", "libx264", "yuv444p10le"),
    _kind("alpha.webm", "M9", "libvpx-vp9", "yuva420p"),
    _kind("vp8.webm", "M9", "libvpx"),
    _kept(
        "av1.mp4",
        "M9",
        _ramp(20, codec="libsvtav1", pix_fmt="yuv420p10le", height=64),
        "64x64x17",
        _A20,
    ),
    _kind("prores.mov", "M9", "prores_ks", "yuv422p10le"),
    _kind("animation.mov", "M9", "qtrle", "rgb24"),
    _kind("alpha.mov", "M9", "png", "rgba"),
    _kind("grey.mkv", "M9", "ffv1", "gray"),
    _kind("16-bit.mkv", "M9", "ffv1", "yuv444p16le"),
    _kind("rgb.mp4", "M9", "libx264rgb", "rgb24"),
    _kind("full-range.avi", "M9", "mjpeg", "yuvj422p"),
    _kind("raw.avi", "M9", "rawvideo"),
    _kind("raw.y4m", "M9", "rawvideo"),
    _kind("stream.ivf", "M9", "libvpx-vp9"),
    _kind("disc.m2ts", "M9", "libx264"),
    _kind("flash.flv", "M9", "flv"),
    _kind("windows.wmv", "M9", "wmv2"),
    _kept(
        "interlaced.mpg",
        "M9",
        _interlaced,
        "64x48x17",
        "30f@25 → 19f@16 → 17",
        _at(25, 17),
    ),
    _kept("b-frames.mp4", "M9", _ramp(20, codec_options=(("bf", "3"),)), "64x48x17", _A20),
    _kept("animated.gif", "M9", _animation("GIF", 30, 40), "64x48x17", "30f@25", _at(25, 17)),
    _kept("animated.webp", "M9", _animation("WEBP", 30, 40), "64x48x17", "30f@25", _at(25, 17)),
    _kept("animated.png", "M9", _animation("PNG", 30, 40), "64x48x17", "30f@25", _at(25, 17)),
    _kept("photo.jpg", "M9", _picture("JPEG"), "64x48x1", "1f", [STILL]),
    _kept("print.jpg", "M9", _picture("JPEG", "CMYK"), "64x48x1", "1f", [STILL]),
    _kept("drawing.png", "M9", _picture("PNG", "P"), "64x48x1", "1f", [STILL]),
    _kept("clear.png", "M9", _picture("PNG", "RGBA"), "64x48x1", "1f", [STILL]),
    _kept("scan.tif", "M9", _picture("TIFF"), "64x48x1", "1f", [STILL]),
    _bad("float.tif", "M9", _picture("TIFF", "F"), "its pixels are numbers of 32 bits"),
    _kept("still.webp", "M9", _picture("WEBP"), "64x48x1", "1f", [STILL]),
    _kept("still.avif", "M9", _picture("AVIF"), "64x48x1", "1f", [STILL]),
    _kept(
        "any-still.avif",
        "M9",
        _changed(_says_any_still, _picture("AVIF")),
        "64x48x1",
        "1f",
        [STILL],
    ),
    _bad("phone.heic", "M9", _content(_HEIC), "a HEIC picture, .* save it as JPEG or PNG"),
    _bad("phone.jpg", "M9", _content(_HEIC), "a HEIC picture"),
    _kept("still.bmp", "M9", _picture("BMP"), "64x48x1", "1f", [STILL]),
    _kept("still.gif", "M9", _picture("GIF", "P"), "64x48x1", "1f", [STILL]),
    _kept("misnamed.jpg", "M9", _picture("PNG"), "64x48x1", "1f", [STILL]),
)

HOSTILE = (
    _bad("claims.png", "M11", _content(_empty_png(30000, 30000)), "limit|exceeds"),
    _bad("unfolds.png", "M11", _content(black_png(30000, 4000)), "limit|exceeds"),
    _bad("wide.gif", "M11", _wide_gif, "no size, or one over the limit"),
    _bad("unfolds.avi", "M11", _packet_bomb, "cannot be read as a video|0x0 pixels"),
    _bad("billion.mp4", "M11", _changed(_billion_samples, _ramp(20)), "no frames|cut short"),
    _bad(
        "billion.avi",
        "M11",
        _says_frames(10**9),
        "says 1,000,000,000 frames; the limit is 1,048,576",
    ),
    _bad(
        "text-bomb.png",
        "M11",
        _content(black_png(64, 48, _chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(10**8), 9)))),
        "picture cannot be decoded",
    ),
    _bad(
        "too-wide.avi",
        "M11",
        _ramp(2, codec="mjpeg", pix_fmt="yuvj420p", width=16400, height=16),
        "16400x16; the limit is 16384",
    ),
    _bad("list.mp4", "M12", _content("#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n"), _NO_VIDEO),
    _bad("join.mp4", "M12", _content("ffconcat version 1.0\nfile a.mp4\n"), _NO_VIDEO),
    _bad(
        "drawing.mp4", "M12", _content("<svg><image href='file:///etc/passwd'/></svg>"), _NO_VIDEO
    ),
    _bad("../secret.mp4", "M12", None, r"'\.\.'"),
    _bad("/etc/hostname", "M12", None, "absolute"),
    _bad("concat:photo.jpg|photo.jpg", "M12", None, "an address"),
    _bad("http://example.org/a.mp4", "M12", None, "an address"),
    _bad("out.mp4", "M12", _link("/etc/hostname"), "a link that leaves"),
    _bad("gone.mp4", "M12", _link("nowhere.mp4"), "is not a file"),
    _bad("absent.mp4", "M12", None, "is not a file"),
    _kept("one/same.mp4", "M13", _ramp(20), "64x48x17", _A20),
    _kept("two/same.mp4", "M13", _ramp(40), "64x48x33", "40f@16 → 40f@16 → 33"),
    _kept("猫 🐈.mp4", "M14", _ramp(20), "64x48x17", _A20),
)

CORPUS: tuple[MediaCase, ...] = (
    *HEADERS,
    *DAMAGED,
    *LENGTH,
    *SIZES,
    *CLOCKS,
    *KINDS,
    *HOSTILE,
)


def write_corpus(root: Path, cases: Sequence[MediaCase]) -> None:
    """Make the files of some cases in a dataset's folder."""
    for case in cases:
        if case.make is not None:
            path = root / case.name
            path.parent.mkdir(parents=True, exist_ok=True)
            case.make(path)


def fault_of(case: MediaCase, row: Any, greys: Sequence[float] | None) -> str | None:
    """What is wrong with a case's row and frames; None if all is right."""
    if not case.bucket:
        if row.status != "rejected" or greys is not None:
            return f"{row.status} as {row.bucket}, but it must be quarantined"
        is_right = re.search(case.reason, row.reason) is not None
        return None if is_right else f"quarantined for {row.reason!r}, not {case.reason!r}"
    if str(row.bucket) != case.bucket:
        return f"{row.status} as {row.bucket} ({row.reason}), not {case.bucket}"
    if not row.arithmetic.startswith(case.arithmetic):
        return f"{row.arithmetic!r} is not {case.arithmetic!r}"
    if greys is None:
        return "has no latents"
    found = [(grey - 20) / 2 for grey in greys]
    if len(found) != len(case.shown):
        return f"has {len(found)} frames, not {len(case.shown)}"
    # Lossy coding blurs single grey steps, and half a frame is the retiming's.
    off = np.abs(np.subtract(found, case.shown))
    if off.max() <= 1.6 and off.mean() <= 0.5:
        return None
    return f"shows {np.round(found, 1).tolist()}, not {list(case.shown)}"
