"""Ways to decode a video without Arachne, each in one thread, and how fast processes do it.

decord and OpenCV are installed beside this environment, into `.venv-readers`, which git ignores.
"""

import importlib.util
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import av
from av.video.reformatter import Interpolation, VideoReformatter

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".venv-readers"
PACKAGES = {
    "opencv": ("cv2", "opencv-python-headless==4.12.0.88"),
    "decord": ("decord", "decord==0.6.0"),
}

SAME_FILTER = Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT
"""As in data/video_source.py."""

Read = Callable[[Path], int]
"""Decodes a file whole; gives the number of frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast clips came.

    Attributes:
        clips_per_s: By the clock, of all processes together.
        cpu_s_per_clip: Processor seconds.
    """

    clips_per_s: float
    cpu_s_per_clip: float


def pyav_frames(path: Path) -> int:
    """PyAV: decode, and look at no pixel."""
    with av.open(str(path)) as container:
        container.streams.video[0].codec_context.thread_count = 1
        return sum(1 for _ in container.decode(video=0))


def pyav(path: Path, size: tuple[int, int]) -> int:
    """PyAV as it comes, but in one thread: RGB at the clip's size by bilinear scaling."""
    width, height = size
    with av.open(str(path)) as container:
        container.streams.video[0].codec_context.thread_count = 1
        return sum(
            bool(frame.reformat(width, height, "rgb24", threads=1).to_ndarray().size)
            for frame in container.decode(video=0)
        )


def pyav_same_filter(path: Path, size: tuple[int, int]) -> int:
    """PyAV with the one call of swscale that preparing makes a frame: what it cannot go below."""
    scaler = VideoReformatter()
    width, height = size
    with av.open(str(path)) as container:
        container.streams.video[0].codec_context.thread_count = 1
        return sum(
            bool(
                scaler.reformat(frame, width, height, "gbrp", interpolation=SAME_FILTER, threads=1)
            )
            for frame in container.decode(video=0)
        )


def opencv(path: Path, size: tuple[int, int]) -> int:
    """OpenCV as it comes: BGR turned into RGB."""
    import cv2  # pyright: ignore[reportMissingImports]

    cv2.setNumThreads(1)
    capture = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1])
    count = 0
    while True:
        is_read, frame = capture.read()
        if not is_read:
            return count
        count += bool(cv2.cvtColor(cv2.resize(frame, size), cv2.COLOR_BGR2RGB).size)


def decord(path: Path, size: tuple[int, int]) -> int:
    """decord as it comes, one thread."""
    import decord  # pyright: ignore[reportMissingImports]

    reader = decord.VideoReader(str(path), width=size[0], height=size[1], num_threads=1)
    return sum(1 for frame in reader if frame.asnumpy().size)


def installed_peers() -> Mapping[str, str]:
    """Why each peer that is absent is absent; those that are not can be imported afterwards."""
    sys.path.append(str(FOLDER))
    absent: dict[str, str] = {}
    for name, (module, package) in PACKAGES.items():
        if importlib.util.find_spec(module) is None:
            print(f"installing {package} into {FOLDER.name}", file=sys.stderr)
            install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
            done = subprocess.run(
                [*install, "--disable-pip-version-check", "--target", FOLDER, package],
                capture_output=True,
                text=True,
                check=False,
            )
            importlib.invalidate_caches()
            if done.returncode != 0:
                absent[name] = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
    return absent


def readers(size: tuple[int, int], absent: Mapping[str, str]) -> dict[str, Read]:
    """Every reader that is there, for clips of a size."""
    sized = {
        "pyav": pyav,
        "pyav_same_filter": pyav_same_filter,
        "opencv": opencv,
        "decord": decord,
    }
    found: dict[str, Read] = {"pyav_frames": pyav_frames}
    return found | {
        name: partial(read, size=size) for name, read in sized.items() if name not in absent
    }


def pace_of(read: Read, paths: Sequence[Path], num_processes: int, num_frames: int) -> Pace:
    """How fast processes read that do nothing else, starting them included."""
    context: Any = multiprocessing.get_context("fork")
    answers = context.Queue()

    def work(share: Sequence[Path]) -> None:
        begin_s = time.process_time()
        counts = [read(path) for path in share]
        answers.put((counts, time.process_time() - begin_s))

    begin_s = time.monotonic()
    processes = [
        context.Process(target=work, args=(paths[number::num_processes],))
        for number in range(num_processes)
    ]
    for process in processes:
        process.start()
    found = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    counts = [count for counts, _ in found for count in counts]
    assert counts == [num_frames] * len(paths), "a reader lost frames"
    return Pace(
        clips_per_s=len(paths) / (time.monotonic() - begin_s),
        cpu_s_per_clip=sum(cpu_s for _, cpu_s in found) / len(paths),
    )
