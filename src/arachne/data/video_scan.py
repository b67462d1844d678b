"""The timeline of a video from its packets: the header's frame count is only a hint."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeAlias, cast

import numpy as np
from av.container import InputContainer
from av.packet import Packet
from av.sidedata.sidedata import Type
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from arachne.core.errors import DataError
from arachne.data.color_matrix import color_matrix
from arachne.data.cut_short import cut_short
from arachne.data.limits import MAX_FRAMES, check_frame_size
from arachne.data.media_file import MediaFile
from arachne.data.timeline import FrameTimes, Timeline, joined_stamps, seconds_of_stamps
from arachne.data.video_file import opened_video

_MISSING_SHARE = 0.02
_MISSING_S = 0.5
"""A file that lacks more than this of what its header promises was cut short."""

_KEPT_BYTES = 2**25
"""*Assumption*: a clip of some seconds has fewer; what is larger is read twice."""

_OBJECT_BYTES = 1024
"""What a packet that is kept takes beside its own bytes, rounded up."""

VideoPacket: TypeAlias = "Packet[VideoStream]"


@dataclass(slots=True, kw_only=True)
class _Packets:
    """What the packets of one video stream say.

    Attributes:
        is_decoding: Whether the first frame is decoded on the way, for what only it knows.
        kept: The packets themselves; None where nobody wants them, or they are too many.
        parts: Where in `stamps` the clock begins anew, as in recordings that were joined.
        num_hidden: Packets that are decoded but not shown, as before the start of a cut.
    """

    is_decoding: bool = False
    kept: list[VideoPacket] | None = None
    num_bytes: int = 0
    stamps: list[int | None] = field(default_factory=list[int | None])
    key_stamps: list[int] = field(default_factory=list[int])
    parts: list[int] = field(default_factory=list[int])
    num_hidden: int = 0
    last_pts: int | None = None
    last_ticks: int = 0
    first_frame: VideoFrame | None = None

    def add(self, packet: VideoPacket) -> None:
        """Count one packet."""
        if self.kept is not None:
            self._keep(self.kept, packet)
        if packet.is_corrupt:
            raise DataError(
                f"the file is damaged or cut short: packet {len(self.stamps) + 1} is not whole"
            )
        if self.is_decoding and self.first_frame is None:
            decoded = packet.decode()
            self.first_frame = decoded[0] if decoded else None
        if packet.size == 0:
            return
        if packet.is_discard:
            self.num_hidden += 1
            return
        self.stamps.append(packet.pts)
        if packet.pts is None:
            return
        if packet.is_keyframe:
            # Other packets come out of order, keyframes never.
            if self.last_pts is not None and packet.pts < self.last_pts:
                self.parts.append(len(self.stamps) - 1)
                self.last_pts = None
            self.key_stamps.append(packet.pts)
        if self.last_pts is None or packet.pts > self.last_pts:
            self.last_pts, self.last_ticks = packet.pts, packet.duration or 0

    def _keep(self, kept: list[VideoPacket], packet: VideoPacket) -> None:
        kept.append(packet)
        self.num_bytes += packet.size + _OBJECT_BYTES
        if self.num_bytes > _KEPT_BYTES:
            self.kept = None


def scan_video(file: MediaFile) -> Timeline:
    """Read all packets of a video, and decode its first frame.

    Raises:
        DataError: It has no frame, is damaged, cut short or over a limit.
    """
    with opened_video(file) as (container, stream):
        packets = _read(file, container, stream, _Packets(is_decoding=True))
        if packets.first_frame is None:
            raise DataError(f"none of its {len(packets.stamps)} packets gives a frame")
        width, height = upright_size(packets.first_frame, stream)
        _ = color_matrix(packets.first_frame)  # refuses what decoding could not convert
        times = _times(packets, stream)
        _refuse_cut_short(times, packets.num_hidden, stream, file.num_bytes)
        return Timeline(
            width=width,
            height=height,
            pts=times.pts,
            key_pts=times.key_pts,
            times_s=times.times_s,
            end_s=times.end_s,
        )


def times_and_packets(
    file: MediaFile, container: InputContainer, stream: VideoStream
) -> tuple[FrameTimes, Sequence[VideoPacket] | None]:
    """When the frames of an open video are shown, found without decoding any, and its packets, to
    be decoded next; None if they are too many to be kept.

    Raises:
        DataError: It has no packet, is damaged, cut short or over a limit.
    """
    packets = _read(file, container, stream, _Packets(kept=[]))
    times = _times(packets, stream)
    _refuse_cut_short(times, packets.num_hidden, stream, file.num_bytes)
    return times, packets.kept


def _read(
    file: MediaFile, container: InputContainer, stream: VideoStream, packets: _Packets
) -> _Packets:
    if stream.frames > MAX_FRAMES:
        raise DataError(f"its header says {stream.frames:,} frames; the limit is {MAX_FRAMES:,}")
    for packet in container.demux(stream):
        packets.add(packet)
        if len(packets.stamps) > MAX_FRAMES:
            raise DataError(f"it has more than {MAX_FRAMES:,} frames; cut it into parts")
    fault = cut_short(file) if _states_its_end(container) else None
    if fault is not None:
        raise DataError(fault)
    if not packets.stamps:
        raise DataError(f"it has no frames; its header says {stream.frames:,}")
    return packets


def rotation_of(frame: VideoFrame) -> int:
    """Quarter turns counter-clockwise that bring a frame upright, 0 to 3; one that `is_mirrored` is
    first flipped top to bottom.

    Raises:
        DataError: The display matrix turns by another angle.
    """
    turns, rest = divmod(frame.rotation, 90)
    if rest:
        raise DataError(f"it is rotated by {frame.rotation} degrees; only quarter turns are read")
    return turns % 4


def is_mirrored(frame: VideoFrame) -> bool:
    """Whether a frame is shown as in a mirror, as some phones record it: the display matrix

        [a  b]
        [c  d]    has a negative determinant, a · d - b · c < 0.

    Source: ISO/IEC 14496-12, 6.2.2, for the matrix; its turn alone, which FFmpeg gives as an angle,
    does not say it.
    """
    matrix: Any = cast(Any, frame).side_data.get(Type.DISPLAYMATRIX)  # its stub takes names only
    if matrix is None:
        return False
    a, b, _, c, d, *_ = map(int, np.frombuffer(matrix, dtype=np.int32))
    return a * d - b * c < 0


def upright_size(frame: VideoFrame, stream: VideoStream) -> tuple[int, int]:
    """(width, height) of a frame after pixel aspect and rotation.

    What the container says of pixels counts before what the video itself says, which is known from
    the first decoded frame on.

    Raises:
        DataError: The size is over a limit.
    """
    check_frame_size(frame.width, frame.height)
    own = stream.codec_context.sample_aspect_ratio
    aspect = stream.sample_aspect_ratio or own or Fraction(1)
    width, height = max(1, round(frame.width * aspect)), frame.height
    check_frame_size(width, height)
    return (height, width) if rotation_of(frame) % 2 else (width, height)


def _times(packets: _Packets, stream: VideoStream) -> FrameTimes:
    count = len(packets.stamps)
    has_stamps = None not in packets.stamps and stream.time_base is not None
    if count > 1 and len(set(packets.stamps)) == 1:  # as good as none
        has_stamps = False
    # Without stamps, as in raw H.264, FFmpeg's average is 25 whatever the video itself says.
    rates = stream.average_rate, stream.guessed_rate
    rate = (rates[0] or rates[1]) if has_stamps else (rates[1] or rates[0])
    if has_stamps:
        stamps = np.array(cast(list[int], packets.stamps), dtype=np.int64)
        pts = joined_stamps(np.split(stamps, packets.parts))
        assert stream.time_base is not None
        times_s, end_s = seconds_of_stamps(pts, stream.time_base, rate, packets.last_ticks)
        if packets.parts:  # a stamp may mean several frames
            has_stamps, pts = False, np.empty(0, dtype=np.int64)
    else:
        if not rate:
            raise DataError("it has neither time stamps nor a frame rate")
        pts = np.empty(0, dtype=np.int64)
        times_s, end_s = np.arange(count) / float(rate), count / float(rate)
    return FrameTimes(
        pts=pts,
        key_pts=np.unique(np.array(packets.key_stamps if has_stamps else [], dtype=np.int64)),
        times_s=times_s,
        end_s=end_s,
    )


def _states_its_end(container: InputContainer) -> bool:
    """Whether FFmpeg reads a cut file of this format without a word."""
    return any(name in ("matroska", "gif") for name in container.format.name.split(","))


def _refuse_cut_short(
    timeline: FrameTimes, num_hidden: int, stream: VideoStream, file_bytes: int
) -> None:
    found = timeline.num_frames + num_hidden
    entries = stream.index_entries
    if len(entries) and entries[-1].pos + entries[-1].size > file_bytes:
        raise DataError(
            f"the file is cut short: its index lists {len(entries)} frames, {found} are there"
        )
    is_trimmed = len(entries) and len(entries) <= found  # an edit list hides part of the frames
    if not is_trimmed and stream.frames * (1.0 - _MISSING_SHARE) > found + 2:
        raise DataError(
            f"the file is cut short: its header says {stream.frames:,} frames, {found} are there"
        )
    promised_s = _duration_tag_s(stream.metadata.get("DURATION", ""))
    # The tag counts from the clock's zero, and counts its jumps, which a timeline closes.
    stamped_s = float(timeline.pts[-1] * stream.time_base) if len(timeline.pts) else 0.0
    if promised_s * (1.0 - _MISSING_SHARE) > max(timeline.end_s, stamped_s) + _MISSING_S:
        raise DataError(
            f"the file is cut short: its header says {promised_s:.2f} s, "
            f"{timeline.end_s:.2f} s are there"
        )


def _duration_tag_s(text: str) -> float:
    """Seconds of Matroska's per-stream tag `00:00:02.400000000`; 0 if it is not there."""
    try:
        hours, minutes, seconds = (float(part) for part in text.split(":"))
    except ValueError:
        return 0.0
    return hours * 3600.0 + minutes * 60.0 + seconds
