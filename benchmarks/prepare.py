"""How fast `arachne prepare` gets clips off the disk, against PyAV decoding the same files.

Videos are made on the spot. `readers` decode them whole to RGB at the clips' size, one process per
core, and do nothing else: `pyav_same_filter` with the filter and rounding that preparing uses, the
others with their defaults, which are faster and give other pixels. Preparing decodes the same files
on as many cores, through everything that `arachne prepare` does but encoding: hashing, scanning,
claims, guarded processes, retiming, scaling, an encoder that costs nothing, synced files. All are
timed several times in turn. `share_of_decode_rate` is over `pyav_same_filter`,
`share_of_plain_decode_rate` over `pyav`.

Preparing counts from the moment when every process has made its first clip, so that starting them
is left out. `peak_rss_mb` is what the largest preparing process and its decoder have ever held,
shared pixels counted in both; `peak_rss_mb_by_clips` shows whether it grows.

    python benchmarks/prepare.py --quick --json out.json
"""

import argparse
import hashlib
import importlib.util
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import Any

import av
import numpy as np
from av.video.reformatter import Interpolation
from machine import about

from arachne.core.bucket import Bucket
from arachne.core.clip import Clip
from arachne.core.ledger import LedgerRow
from arachne.data.decode import cover_size
from arachne.data.make_arrays import Begun, Settled, Workshop, make_arrays
from arachne.data.prepare import Latents, Store

WIDTH, HEIGHT, FPS, FRAMES = 1280, 720, 16, 49
BUCKET = Bucket(width=832, height=480, frames=FRAMES)
COVER = cover_size(WIDTH, HEIGHT, BUCKET)

FILTER = Interpolation.LANCZOS | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT
"""As in data/video_source.py."""

Read = Callable[[Path], int]
"""Decodes a file whole to RGB; gives the number of frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeEncoder:
    """Costs nothing."""

    fingerprint: str = "free"

    def encode(self, what: Any, /) -> np.ndarray:
        """One number."""
        return np.zeros((1, 1, 1, 1), np.float32)


def made_videos(folder: Path, count: int) -> list[Path]:
    """Videos in which noise, edges and gradients move, each with other bytes."""
    generator = np.random.default_rng(0)
    texture = generator.integers(0, 60, (2 * HEIGHT, 2 * WIDTH, 3), dtype=np.uint8)
    texture += np.linspace(0, 150, 2 * WIDTH, dtype=np.uint8)[None, :, None]
    paths = [folder / f"{number}.mp4" for number in range(count)]
    for number, path in enumerate(paths):
        with av.open(str(path), "w") as container:
            stream: Any = container.add_stream("libx264", rate=Fraction(FPS))
            stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
            stream.options = {"preset": "veryfast", "crf": "23"}
            for index in range(FRAMES):
                left, top = (3 * index + 17 * number) % WIDTH, (2 * index) % HEIGHT
                pixels = np.ascontiguousarray(texture[top : top + HEIGHT, left : left + WIDTH])
                container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
            container.mux(stream.encode())
    return paths


def rows_of(paths: Sequence[Path]) -> list[LedgerRow]:
    """The videos as clips of one bucket."""
    return [
        LedgerRow(
            clip=Clip(path=path.name, caption=""),
            status="kept",
            arithmetic="",
            reason="",
            bucket=BUCKET,
            num_tokens=1,
            content=hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in paths
    ]


def pyav(path: Path, interpolation: Interpolation | None = None) -> int:
    """PyAV, one thread."""
    width, height = COVER
    with av.open(str(path)) as container:
        container.streams.video[0].codec_context.thread_count = 1
        count = 0
        for frame in container.decode(video=0):
            scaled = frame.reformat(width, height, "rgb24", interpolation=interpolation)
            count += bool(scaled.to_ndarray().size)
        return count


def pyav_same_filter(path: Path) -> int:
    """PyAV, one thread, to the very pixels that preparing makes."""
    return pyav(path, FILTER)


def opencv(path: Path) -> int:
    """OpenCV, as it comes: BGR turned into RGB."""
    import cv2  # pyright: ignore[reportMissingImports]

    cv2.setNumThreads(1)
    capture = cv2.VideoCapture(str(path))
    count = 0
    while True:
        is_read, frame = capture.read()
        if not is_read:
            return count
        count += bool(cv2.cvtColor(cv2.resize(frame, COVER), cv2.COLOR_BGR2RGB).size)


def decord(path: Path) -> int:
    """decord, one thread."""
    import decord  # pyright: ignore[reportMissingImports]

    reader = decord.VideoReader(str(path), width=COVER[0], height=COVER[1], num_threads=1)
    return sum(1 for frame in reader if frame.asnumpy().size)


def installed_readers() -> dict[str, Read]:
    """PyAV twice, and what else is installed."""
    others = {"opencv": ("cv2", opencv), "decord": ("decord", decord)}
    found = {
        name: read for name, (module, read) in others.items() if importlib.util.find_spec(module)
    }
    return {"pyav": pyav, "pyav_same_filter": pyav_same_filter, **found}


def reader_rate(read: Read, paths: Sequence[Path], num_processes: int) -> float:
    """Clips per second of processes that only decode."""
    context: Any = multiprocessing.get_context("fork")
    counts = context.Queue()

    def work(share: Sequence[Path]) -> None:
        counts.put([read(path) for path in share])

    begin_s = time.monotonic()
    processes = [
        context.Process(target=work, args=(paths[number::num_processes],))
        for number in range(num_processes)
    ]
    for process in processes:
        process.start()
    found = [count for _ in processes for count in counts.get()]
    for process in processes:
        process.join()
    assert found == [FRAMES] * len(paths), "a reader lost frames"
    return len(paths) / (time.monotonic() - begin_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A clip was prepared: by whom, when, and the most memory held until then."""

    process: int
    at_s: float
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
                made.append(Made(process=number, at_s=time.monotonic(), peak_rss_mb=peak_rss_mb()))

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


def peak_rss_mb() -> float:
    """The most that this process and its decoders have held."""
    processes = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    return sum(_peak_kib(process) for process in processes if process) / 1024


def _peak_kib(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def preparing_rate(made: Sequence[Made]) -> float:
    """Clips per second from the moment when every process has made one."""
    first_of: dict[int, float] = {}
    for clip in made:
        first_of.setdefault(clip.process, clip.at_s)
    begin_s = max(first_of.values())
    later = [clip for clip in made if clip.at_s > begin_s]
    return len(later) / (made[-1].at_s - begin_s)


def measured(num_clips: int, num_rounds: int) -> dict[str, Any]:
    """All figures."""
    cores = len(os.sched_getaffinity(0))
    rates: dict[str, list[float]] = {name: [] for name in installed_readers()}
    preparing: list[float] = []
    peaks: list[list[float]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = made_videos(folder, num_clips)
        rows = rows_of(paths)
        for number in range(num_rounds):
            for reader, read in installed_readers().items():
                rates[reader].append(reader_rate(read, paths, cores))
            made = prepared(folder, rows, folder / f"cache-{number}", cores)
            preparing.append(preparing_rate(made))
            peaks.append([clip.peak_rss_mb for clip in made])
    shares, plain_shares = (
        [ours / alone for ours, alone in zip(preparing, rates[reader], strict=True)]
        for reader in ("pyav_same_filter", "pyav")
    )
    marks = sorted({num_clips // 4, num_clips // 2, num_clips})
    return {
        "share_of_decode_rate": round(median(shares), 3),
        "share_of_decode_rate_by_round": [round(share, 3) for share in shares],
        "share_of_plain_decode_rate": round(median(plain_shares), 3),
        "clips_per_s": round(median(preparing), 2),
        "peak_rss_mb": round(max(map(max, peaks)), 1),
        "peak_rss_mb_by_clips": {
            str(mark): round(max(max(peak[:mark]) for peak in peaks), 1) for mark in marks
        },
        "readers": {reader: round(median(found), 2) for reader, found in rates.items()},
    }


def main() -> int:
    """Print the figures, and write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer clips and rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    arguments = parser.parse_args()
    num_clips, num_rounds = (12, 3) if arguments.quick else (96, 5)
    figures = measured(num_clips, num_rounds)
    figures["about"] = about(
        clips=num_clips,
        rounds=num_rounds,
        source=f"{WIDTH}x{HEIGHT}x{FRAMES}",
        bucket=str(BUCKET),
        cores_used=len(os.sched_getaffinity(0)),
    )
    text = json.dumps(figures, indent=2)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
