"""Decode in a process of its own, which may hang, crash or ask for too much memory.

The process writes a clip's pixels into memory that it shares with the caller, and serves one clip
after another. A clip over the time limit ends it, as does a decoder's crash; the next clip gets a
new one. A clip with which a process ended is tried once more, since something else may have ended
it.
"""

import ctypes
import mmap
import os
import resource
import signal
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.reduction import DupFd
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from arachne.core.bucket import Bucket
from arachne.core.clip import TimeSpan
from arachne.core.errors import ArachneError, DataError
from arachne.core.held_signals import end_by_signals, signals_held_back
from arachne.core.refused_write import refusal
from arachne.core.units import bytes_text
from arachne.data.decode import decode_clip
from arachne.data.file_identity import content_of
from arachne.data.frame_size import Fit
from arachne.data.limits import MAX_DECODE_BYTES
from arachne.data.remote_path import DatasetPath, RemotePath
from arachne.data.source_media import source_media
from arachne.data.timed_frame import Pixels, as_pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeJob:
    """One clip to decode.

    Attributes:
        root: The dataset.
        path: The file, as the dataset names it.
        content: SHA-256 that the file must have.
        span: The part of the file; None is all of it.
        bucket: The shape that its frames are brought to.
        fps: Frames per second that they are retimed to.
        fit: Whether what does not fit the bucket is cropped, or set in black.
    """

    root: DatasetPath
    path: str
    content: str
    span: TimeSpan | None
    bucket: Bucket
    fps: float
    fit: Fit = "crop"

    @property
    def num_bytes(self) -> int:
        """Of the pixels."""
        return 3 * self.bucket.num_pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a clip cannot be prepared.

    Attributes:
        is_lasting: Whether the clip itself is at fault, so that trying again is of no use.
    """

    reason: str
    is_lasting: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decoded:
    """A clip that was decoded.

    Attributes:
        pixels: Its frames [F, H, W, 3], valid until the next clip is started.
        num_frames: How many frames the file has for it; None if not all were decoded.
    """

    pixels: Pixels
    num_frames: int | None


_Answer = Refusal | int | None
"""Why there are no pixels, or else how many frames were counted."""


class GuardedDecoder:
    """A decoding process, started with the first clip; a context that ends it.

    The process is spawned: the caller's script needs the usual `if __name__ == "__main__"`.
    """

    def __init__(self, *, time_limit_s: float, memory_bytes: int = MAX_DECODE_BYTES) -> None:
        self._time_limit_s = time_limit_s
        self._memory_bytes = memory_bytes
        self._pixels = _SharedPixels(os.memfd_create("arachne pixels"))
        self._process: Any = None
        self._connection: Connection[DecodeJob, _Answer] | None = None
        self._job: DecodeJob | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()
        self._pixels.close()

    def start(self, job: DecodeJob) -> None:
        """Begin to decode a clip; the pixels of the one before are overwritten."""
        assert self._job is None, "the result of the clip before was not taken"
        self._job = job
        self._send(job)

    def result(self) -> Decoded | Refusal:
        """What became of the clip that was started."""
        job, self._job = self._job, None
        assert job is not None, "no clip was started"
        for is_last in (False, True):
            try:
                answer = self._receive(job)
                if isinstance(answer, Refusal):
                    return answer
                return Decoded(pixels=self._pixels.of(job), num_frames=answer)
            except (EOFError, OSError):
                how = self._end()
            if how == "SIGALRM":
                return _took_too_long(job, self._time_limit_s)
            if is_last:
                break
            self._send(job)
        return Refusal(reason=f"decoding it ended the process twice ({how})", is_lasting=True)

    def _send(self, job: DecodeJob) -> None:
        self._pixels.make_room(job)
        if self._connection is None:
            context = get_context("spawn")
            self._connection, far_end = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(
                    far_end,
                    _Inherited(self._pixels.descriptor),
                    self._time_limit_s,
                    self._memory_bytes,
                ),
                name="decoder",
                daemon=True,
            )
            with signals_held_back():
                process.start()
            self._process = process
            far_end.close()
        try:
            self._connection.send(job)
        except OSError:  # it ended while it was idle; `result` starts another one
            return

    def _receive(self, job: DecodeJob) -> _Answer:
        """What the process answers.

        Raises:
            EOFError, OSError: It has ended.
        """
        assert self._connection is not None
        # Its own timer ends it sooner, unless it was suspended.
        if self._connection.poll(self._time_limit_s + _START_S):
            answer: _Answer = self._connection.recv()
            return answer
        self._process.kill()
        self._end()
        return _took_too_long(job, self._time_limit_s)

    def _end(self) -> str:
        """End the process; how it had ended."""
        if self._connection is None:
            return ""
        self._connection.close()
        if self._process is None:  # it could not be started
            self._connection = None
            return ""
        self._process.join(_GRACE_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        code: int | None = self._process.exitcode
        self._connection = self._process = None
        if code is None:  # another thread, which started a process, is just learning of it
            return "an unknown end"
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


class _SharedPixels:
    """Memory that two processes share, large enough for the largest clip so far.

    It stays mapped from clip to clip: to touch its pages for the first time costs as much as to
    fill them.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory: mmap.mmap | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes that are mapped here."""
        return 0 if self._memory is None else len(self._memory)

    def make_room(self, job: DecodeJob) -> None:
        """Let the memory be large enough for a clip, for both processes.

        Raises:
            DataError: The system refuses it; to limits it is a file.
        """
        size = max(job.num_bytes, os.fstat(self.descriptor).st_size)
        try:
            os.ftruncate(self.descriptor, size)
        except OSError as error:
            raise DataError(
                f"there is no memory for the pixels of a clip of {job.bucket}, "
                f"{bytes_text(job.num_bytes)}: {refusal(error)}"
            ) from error

    def of(self, job: DecodeJob) -> Pixels:
        """A clip's pixels, for which room was made; its views stay valid when the memory grows."""
        if self._memory is None or len(self._memory) < job.num_bytes:
            self._memory = None  # unmapped as soon as nobody looks at it, before the larger one
            self._memory = mmap.mmap(self.descriptor, job.num_bytes)
        bucket = job.bucket
        planes = np.frombuffer(self._memory, dtype=np.uint8, count=job.num_bytes)
        return as_pixels(planes.reshape(bucket.frames, 3, bucket.height, bucket.width))

    def close(self) -> None:
        """Give up the memory; pixels that somebody still looks at stay."""
        self._memory = None
        os.close(self.descriptor)


_START_S = 60.0
"""*Assumption*: a new process imports what it needs within this time on a busy machine."""

_GRACE_S = 0.5

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Of mallopt(3), in glibc's malloc.h."""

_TRIM_BYTES = 2**27
_MMAP_BYTES = 2**25
"""The largest that glibc takes; a 4K frame is smaller."""


@dataclass(frozen=True, slots=True)
class _Inherited:
    """A descriptor that a process has from its start, and gets as its number.

    `DupFd` outside of a start would send it later, through a socket with a path in the temporary
    folder; a socket's path may have 107 bytes, and some of those folders have more.
    """

    descriptor: int

    def __reduce__(self) -> tuple[Any, ...]:
        return _number, (DupFd(self.descriptor),)


def _number(descriptor: Any) -> int:
    """Of a descriptor that this process has inherited."""
    return descriptor.detach()


def _serve(
    connection: "Connection[Any, Any]", pixels: int, time_limit_s: float, memory_bytes: int
) -> None:
    """Decode what comes, until the caller is gone."""
    end_by_signals(signal.SIGTERM)  # as Python ends what is left at its exit; not by Ctrl-C
    _keep_freed_memory()
    # The caller may be gone, or be ended at any moment.
    with suppress(EOFError, OSError):
        shared = _SharedPixels(pixels)
        base_bytes = _address_space_bytes() + memory_bytes
        while True:
            job: DecodeJob = connection.recv()
            limit = base_bytes + max(job.num_bytes, shared.num_bytes)
            resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
            # Python would run a handler between two calls only; without one the kernel acts.
            signal.setitimer(signal.ITIMER_REAL, time_limit_s)
            answer = _decoded(job, shared, memory_bytes)
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            connection.send(answer)


def _keep_freed_memory() -> None:
    """Let the memory of one frame serve the next one.

    By itself glibc may give it back to the kernel after each frame, by the chance of what lies
    behind it, and touching it anew adds a quarter to a clip's time. Other C libraries have no such
    call.
    """
    mallopt: Any = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)


def _decoded(job: DecodeJob, shared: _SharedPixels, memory_bytes: int) -> _Answer:
    """Decode a clip into the shared memory, or say why not; its frames if all were counted."""
    counts: list[int] = []
    try:
        file = source_media(job.root, job.path)
        if content_of(file) != job.content:
            return Refusal(
                reason="the file has changed since it was inspected; take it as it is now with: "
                "arachne prepare --again",
                is_lasting=False,
            )
    except (ArachneError, OSError) as error:
        return Refusal(reason=_words(error), is_lasting=False)
    try:
        decode_clip(
            file,
            job.span,
            job.bucket,
            job.fps,
            fit=job.fit,
            into=shared.of(job),
            tell_count=counts.append,
        )
    except DataError as error:
        return Refusal(reason=str(error), is_lasting=True)
    except MemoryError:
        return Refusal(
            reason=f"decoding it needs more than {memory_bytes / 2**30:.3g} GiB of memory",
            is_lasting=True,
        )
    except Exception as error:  # libraries have many for damaged files; the other clips go on
        return Refusal(reason=_words(error), is_lasting=False)
    return counts[0] if counts else None


def _words(error: Exception) -> str:
    if isinstance(error, ArachneError):
        return str(error)
    if isinstance(error, OSError):
        return f"the file cannot be read: {error.strerror or error}"
    return f"decoding it failed: {type(error).__name__}: {error}"


def _address_space_bytes() -> int:
    with Path("/proc/self/statm").open() as file:
        return int(file.read().split()[0]) * mmap.PAGESIZE


def _took_too_long(job: DecodeJob, time_limit_s: float) -> Refusal:
    """What is far away may be read faster another time."""
    if isinstance(job.root, RemotePath):
        reason = f"reading and decoding it took longer than {time_limit_s:g} s"
        return Refusal(reason=reason, is_lasting=False)
    return Refusal(reason=f"decoding it took longer than {time_limit_s:g} s", is_lasting=True)
