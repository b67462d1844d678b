"""How fast `arachne prepare` gets clips off the disk, against others that decode the same files.

Videos are made on the spot, in three kinds: scaled down, trained as they are, and small. Readers
(`video_readers.py`) decode them whole, one process per core, and do nothing else. Preparing decodes
the same files on as many cores, through everything that `arachne prepare` does but encoding:
hashing, scanning, claims, guarded processes, retiming, scaling, an encoder that costs nothing,
synced files. All are timed in turn, several times.

`share_of_decode_rate` is over `pyav`, which decodes to RGB of the clip's size with its defaults;
`pyav_frames` makes no pixels at all, and `pyav_same_filter` only adds the one call of swscale that
preparing makes a frame. Shares are of clips per processor second, since both keep all cores busy
and a busy machine disturbs them less; those by the clock stand beside. `readers` are clips per
second by the clock. Preparing counts from the moment when every process has made its first clip.

Memory is that of the largest preparing process and its decoder, shared pixels counted in both, over
many tiny clips of several shapes: `peak_rss_mb_by_clips` shows whether it grows.

    python benchmarks/prepare.py --quick --json out.json
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import struct
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import Any

import av
import numpy as np
from machine import about
from video_readers import Pace, installed_peers, pace_of, readers

from arachne.core.bucket import Bucket
from arachne.core.clip import Clip
from arachne.core.ledger import LedgerRow
from arachne.data.frame_size import scaled_size
from arachne.data.make_arrays import Begun, Settled, Workshop, make_arrays
from arachne.data.prepare import Latents, Store

FPS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Videos of one kind.

    Attributes:
        width, height: Of the files.
        bucket: What clips of them are brought to; as many frames as the files have.
        times: So many times as many clips, where few would be done before every process has begun.
    """

    width: int
    height: int
    bucket: Bucket
    times: int = 1


SOURCES: Mapping[str, Source] = {
    "1280x720 scaled": Source(width=1280, height=720, bucket=Bucket.parse("832x480x49")),
    "832x480 as it is": Source(width=832, height=480, bucket=Bucket.parse("832x480x49")),
    "176x144 as it is": Source(width=176, height=144, bucket=Bucket.parse("176x144x49"), times=8),
}
TINY = Source(width=96, height=80, bucket=Bucket.parse("96x80x9"))
TINY_BUCKETS = tuple(map(Bucket.parse, ("96x80x9", "64x64x9", "80x64x5", "48x48x9", "96x64x1")))


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeEncoder:
    """Costs nothing."""

    fingerprint: str = "free"

    def encode(self, what: Any, /) -> np.ndarray:
        """One number."""
        return np.zeros((1, 1, 1, 1), np.float32)


def made_videos(folder: Path, source: Source, count: int) -> list[Path]:
    """Videos in which noise, edges and gradients move, each with other bytes."""
    generator = np.random.default_rng(0)
    width, height, frames = source.width, source.height, source.bucket.frames
    texture = generator.integers(0, 60, (2 * height, 2 * width, 3), dtype=np.uint8)
    texture += np.linspace(0, 150, 2 * width, dtype=np.uint8)[None, :, None]
    paths = [folder / f"{number}.mp4" for number in range(count)]
    for number, path in enumerate(paths):
        with av.open(str(path), "w") as container:
            stream: Any = container.add_stream("libx264", rate=Fraction(FPS))
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            stream.options = {"preset": "veryfast", "crf": "23"}
            for index in range(frames):
                # 17 is prime to the widths: after as many videos the first place comes again.
                left = (3 * index + 17 * number) % width
                top = (2 * index + number // width) % height
                pixels = np.ascontiguousarray(texture[top : top + height, left : left + width])
                container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
            container.mux(stream.encode())
    return paths


def copies(path: Path, folder: Path, count: int) -> list[Path]:
    """A video again and again, each with other bytes: a number in an empty MP4 box at its end."""
    content = path.read_bytes()
    paths = [folder / f"copy-{number}.mp4" for number in range(count)]
    for number, copy in enumerate(paths):
        copy.write_bytes(content + struct.pack(">I4sQ", 16, b"free", number))
    return paths


def rows_of(paths: Sequence[Path], buckets: Sequence[Bucket]) -> list[LedgerRow]:
    """The videos as clips, of the buckets in turn."""
    return [
        LedgerRow(
            clip=Clip(path=path.name, caption=""),
            status="kept",
            arithmetic="",
            reason="",
            bucket=buckets[number % len(buckets)],
            num_tokens=1,
            content=hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for number, path in enumerate(paths)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A clip was prepared.

    Attributes:
        process: By whom.
        at_s: When.
        cpu_s: Processor seconds of that process and its decoder until then.
        peak_rss_mb: The most memory that both have held until then.
    """

    process: int
    at_s: float
    cpu_s: float
    peak_rss_mb: float


def prepared(
    folder: Path, rows: Sequence[LedgerRow], cache_dir: Path, num_processes: int
) -> list[Made]:
    """Prepare on processes, with an encoder that costs nothing; the clips in order of time."""
    context: Any = multiprocessing.get_context("fork")
    queue = context.Queue()
    workshop = Workshop(
        root=folder,
        store=Store(
            cache_dir=cache_dir,
            fps=float(FPS),
            video_fingerprint=FreeEncoder().fingerprint,
            text_fingerprint=FreeEncoder().fingerprint,
        ),
        video_encoder=FreeEncoder(),
        text_encoder=FreeEncoder(),
    )
    pieces = workshop.store.pieces(rows)
    latents = {piece.key for piece in pieces if isinstance(piece, Latents)}

    def work(number: int) -> None:
        made: list[Made] = []

        def tell(event: Begun | Settled) -> None:
            if isinstance(event, Settled) and event.is_own and event.key in latents:
                assert not event.reason, event.reason
                made.append(measured_now(number))

        make_arrays(workshop, pieces, tell)
        queue.put(made)

    processes = [context.Process(target=work, args=(number,)) for number in range(num_processes)]
    for process in processes:
        process.start()
    found = [made for _ in processes for made in queue.get()]
    for process in processes:
        process.join()
    assert len(found) == len(rows), "clips were prepared twice, or not at all"
    return sorted(found, key=lambda made: made.at_s)


def measured_now(process: int) -> Made:
    """What this process and its decoder have taken until now."""
    pids = [child.pid for child in multiprocessing.active_children()]
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    cpu_s, peak_kib = time.process_time(), 0
    for pid in [os.getpid(), *pids]:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        peak_kib += int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        cpu_s += (int(fields[11]) + int(fields[12])) * tick_s
    return Made(process=process, at_s=time.monotonic(), cpu_s=cpu_s, peak_rss_mb=peak_kib / 1024)


def preparing_pace(made: Sequence[Made]) -> Pace:
    """How fast, from the moment when every process has made a clip."""
    of_process: dict[int, list[Made]] = {}
    for clip in made:
        of_process.setdefault(clip.process, []).append(clip)
    begin_s = max(clips[0].at_s for clips in of_process.values())
    num_later = sum(clip.at_s > begin_s for clip in made)
    assert num_later, "a process made its first clip last; the machine is too busy, try again"
    num_timed = sum(len(clips) - 1 for clips in of_process.values())
    cpu_s = sum(clips[-1].cpu_s - clips[0].cpu_s for clips in of_process.values())
    return Pace(clips_per_s=num_later / (made[-1].at_s - begin_s), cpu_s_per_clip=cpu_s / num_timed)


def measured(
    folder: Path, source: Source, absent: Mapping[str, str], num_clips: int, num_rounds: int
) -> dict[str, Any]:
    """The figures of one kind of video."""
    cores = len(os.sched_getaffinity(0))
    paths = made_videos(folder, source, num_clips * source.times)
    rows = rows_of(paths, [source.bucket])
    others = readers(
        scaled_size(
            source.width, source.height, (source.bucket.width, source.bucket.height), "crop"
        ),
        absent,
    )
    paces: dict[str, list[Pace]] = {name: [] for name in ("arachne", *others)}
    for number in range(num_rounds):
        for name, read in others.items():
            paces[name].append(pace_of(read, paths, cores, source.bucket.frames))
        made = prepared(folder, rows, folder / f"cache-{number}", cores)
        paces["arachne"].append(preparing_pace(made))
    ours = paces["arachne"]
    num_bytes = sum(path.stat().st_size for path in paths)
    clips_per_s = median(pace.clips_per_s for pace in ours)

    def shares(name: str) -> dict[str, float]:
        pairs = list(zip(ours, paces[name], strict=True))
        by_cpu = [theirs.cpu_s_per_clip / our.cpu_s_per_clip for our, theirs in pairs]
        by_clock = [our.clips_per_s / theirs.clips_per_s for our, theirs in pairs]
        return {"by_cpu": round(median(by_cpu), 3), "by_clock": round(median(by_clock), 3)}

    return {
        "share_of": {name: shares(name) for name in others},
        "cpu_ms_per_clip": {
            name: round(1e3 * median(pace.cpu_s_per_clip for pace in found), 1)
            for name, found in paces.items()
        },
        "clips_per_s": round(clips_per_s, 2),
        "mb_per_s": round(clips_per_s * num_bytes / len(paths) / 1e6, 2),
        "readers": {
            name: round(median(pace.clips_per_s for pace in paces[name]), 2) for name in others
        },
    }


def memory(folder: Path, num_clips: int) -> dict[str, float]:
    """Peaks of memory after an eighth, a quarter, half and all of many clips."""
    (first,) = made_videos(folder, TINY, 1)
    rows = rows_of(copies(first, folder, num_clips), TINY_BUCKETS)
    made = prepared(folder, rows, folder / "cache-memory", len(os.sched_getaffinity(0)))
    marks = [num_clips // 8, num_clips // 4, num_clips // 2, num_clips]
    return {str(mark): round(max(clip.peak_rss_mb for clip in made[:mark]), 1) for mark in marks}


def all_figures(num_clips: int, num_rounds: int, num_tiny: int) -> dict[str, Any]:
    """All figures; those at the top are of the first kind of video."""
    absent = installed_peers()
    with tempfile.TemporaryDirectory() as name:
        found: dict[str, Any] = {}
        for kind, source in SOURCES.items():
            folder = Path(name) / kind
            folder.mkdir()
            found[kind] = measured(folder, source, absent, num_clips, num_rounds)
        peaks = memory(Path(name), num_tiny)
    first = next(iter(found.values()))
    return {
        "share_of_decode_rate": first["share_of"]["pyav"]["by_cpu"],
        "share_of_decode_rate_by_clock": first["share_of"]["pyav"]["by_clock"],
        "clips_per_s": first["clips_per_s"],
        "mb_per_s": first["mb_per_s"],
        "peak_rss_mb": peaks[str(num_tiny)],
        "peak_rss_mb_by_clips": peaks,
        "readers": first["readers"],
        "absent_readers": dict(absent),
        "sources": found,
    }


def main() -> int:
    """Print the figures, and write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer clips and rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    arguments = parser.parse_args()
    num_clips, num_rounds, num_tiny = (8, 2, 200) if arguments.quick else (48, 5, 2000)
    figures = all_figures(num_clips, num_rounds, num_tiny)
    figures["about"] = about(
        clips=num_clips,
        rounds=num_rounds,
        tiny_clips=num_tiny,
        cores_used=len(os.sched_getaffinity(0)),
    )
    text = json.dumps(figures, indent=2)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
