"""Inspect a dataset: probe every file, shape every clip, and say what became of it."""

import signal
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import PurePosixPath

from arachne.core.clip import Clip
from arachne.core.errors import DataError
from arachne.core.held_signals import end_by_signals, signals_held_back
from arachne.core.ledger import Ledger, LedgerRow
from arachne.core.model_shape import Geometry
from arachne.core.parent_watch import exit_with_parent
from arachne.data.decode import decode_clip
from arachne.data.extraction import piece_spans
from arachne.data.file_identity import content_of
from arachne.data.file_stamp import lasting_stamp
from arachne.data.known_rows import known_rows
from arachne.data.layouts import read_clips
from arachne.data.media_file import MediaFile
from arachne.data.media_suffixes import has_video_name
from arachne.data.probe import is_picture_file, timeline_of
from arachne.data.remote_path import DatasetPath
from arachne.data.shapes import ShapeRules, Shaping, shape_of
from arachne.data.source_media import source_media
from arachne.data.timeline import Timeline, cut, facts_of

Progress = Callable[[int, int], None]
"""Called with (clips done, clips in all)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileJob:
    """All clips of one file, by their place in the dataset: the file is scanned once for them."""

    root: DatasetPath
    path: str
    clips: tuple[tuple[int, Clip], ...]
    rules: ShapeRules
    geometry: Geometry
    is_decoded: bool = False


_Rows = list[tuple[int, tuple[LedgerRow, ...]]]
"""By a clip's place in the dataset: one row, or one for each of its pieces that train."""

_MAX_CHUNK = 32
"""Files that are sent to a process at once; a progress bar moves in such steps."""


def inspect_dataset(
    root: DatasetPath,
    rules: ShapeRules,
    geometry: Geometry,
    missing_caption: str,
    num_workers: int,
    progress: Progress | None = None,
    known: Sequence[LedgerRow] = (),
) -> Ledger:
    """The ledger of a dataset, in the dataset's order; nothing is written.

    Each clip has one row, or one for each of the pieces that the extraction mode takes of it.

    With more than one worker files are probed in processes of their own (spawned: the caller's
    script needs the usual `if __name__ == "__main__"`), and a file that kills its process is a
    rejected row.

    Raises:
        DataError: There is no dataset, its table cannot be read, or a caption is missing.
        ConfigError: A length is not legal for the model.
    """
    rules.check(geometry)
    clips = read_clips(root, missing_caption)
    return inspect_clips(root, clips, rules, geometry, num_workers, progress, known=known)


def inspect_clips(
    root: DatasetPath,
    clips: Sequence[Clip],
    rules: ShapeRules,
    geometry: Geometry,
    num_workers: int,
    progress: Progress | None = None,
    is_decoded: bool = False,
    known: Sequence[LedgerRow] = (),
) -> Ledger:
    """The ledger of some clips of a dataset; `inspect_dataset` has the rest.

    Frames are counted from packets; with `is_decoded` each clip is decoded to its end, too, its
    frames are counted, and one that does not give what its packets promise is rejected. Rows that
    are `known`, of an earlier ledger by the same rules, stand where their files are as they were.
    """
    rows: dict[int, tuple[LedgerRow, ...]] = {
        index: (rejected(replace(clip, fault=""), clip.fault),)
        for index, clip in enumerate(clips)
        if clip.fault
    }
    before = known_rows(root, known)
    for index, clip in enumerate(clips):
        if index not in rows and (standing := before.holding(clip)) is not None:
            rows[index] = standing
    jobs = [
        replace(job, is_decoded=is_decoded) for job in _jobs(root, clips, rules, geometry, rows)
    ]
    is_inline = num_workers <= 1 or len(jobs) <= 1
    finished = map(_inspect_file, jobs) if is_inline else _in_processes(jobs, num_workers)
    for file_rows in finished:
        rows.update({index: before.confirmed(clips[index], found) for index, found in file_rows})
        if progress is not None:
            progress(len(rows), len(clips))
    return Ledger(rows=tuple(row for index in range(len(clips)) for row in rows[index]))


def rejected(clip: Clip, reason: str, content: str = "", arithmetic: str = "") -> LedgerRow:
    """The row of a clip that cannot be trained."""
    return LedgerRow(
        clip=clip,
        status="rejected",
        arithmetic=arithmetic,
        reason=reason,
        bucket=None,
        num_tokens=0,
        content=content,
    )


def _jobs(
    root: DatasetPath,
    clips: Sequence[Clip],
    rules: ShapeRules,
    geometry: Geometry,
    settled: Collection[int] = (),
) -> list[_FileJob]:
    """One job a file, without the clips that are `settled`, by their places."""
    by_path: dict[str, list[tuple[int, Clip]]] = {}
    for index, clip in enumerate(clips):
        if index not in settled:
            by_path.setdefault(clip.path, []).append((index, clip))
    return [
        _FileJob(root=root, path=path, clips=tuple(group), rules=rules, geometry=geometry)
        for path, group in by_path.items()
    ]


def _inspect_file(job: _FileJob) -> _Rows:
    content = stamp = ""
    try:
        file = source_media(job.root, job.path)
        stamp = lasting_stamp(file.path)  # then its content: should it change now, that is noticed
        content = content_of(file)
        _refuse_picture_called_video(job.path, file)
        timeline = timeline_of(file)
    except DataError as error:
        reason = str(error)
    except OSError as error:
        reason = f"the file cannot be read: {error.strerror or error}"
    else:
        found = [(index, _rows(clip, timeline, job, content)) for index, clip in job.clips]
        return _stamped(_decoded(file, found, job.rules) if job.is_decoded else found, stamp)
    return _stamped(
        [(index, (rejected(clip, reason, content),)) for index, clip in job.clips], stamp
    )


def _stamped(found: _Rows, stamp: str) -> _Rows:
    """The rows of a file with what tells later whether it is still the same."""
    return [(index, tuple(replace(row, stamp=stamp) for row in rows)) for index, rows in found]


def _decoded(file: MediaFile, found: _Rows, rules: ShapeRules) -> _Rows:
    """The rows of a file, those rejected whose clip cannot be decoded."""
    return [(index, tuple(_decoded_row(file, row, rules) for row in rows)) for index, rows in found]


def _decoded_row(file: MediaFile, row: LedgerRow, rules: ShapeRules) -> LedgerRow:
    if row.bucket is None:
        return row
    counts: list[int] = []
    try:
        decode_clip(
            file,
            row.clip.part,
            row.bucket,
            rules.fps,
            fit=rules.fit,
            tell_count=counts.append,
            is_counted=True,
        )
    except DataError as error:
        return rejected(row.clip, str(error), row.content, row.arithmetic)
    except MemoryError:
        reason = "decoding it needs more memory than there is"
        return rejected(row.clip, reason, row.content, row.arithmetic)
    return row.counted(counts[0])


def _refuse_picture_called_video(path: str, file: MediaFile) -> None:
    """What a server sent instead of a video must not train as a still."""
    if has_video_name(path) and is_picture_file(file):
        suffix = PurePosixPath(path).suffix
        raise DataError(
            f"its content is a picture, though it is called {suffix}; if the still is meant, give "
            "it a picture's ending, such as .jpg"
        )


def _rows(clip: Clip, timeline: Timeline, job: _FileJob, content: str) -> tuple[LedgerRow, ...]:
    try:
        facts = facts_of(timeline, clip.span)
    except DataError as error:
        return (rejected(clip, str(error), content),)
    shaping = shape_of(facts, job.rules, job.geometry)
    if shaping.bucket is None:
        return (rejected(clip, shaping.reason, content, shaping.arithmetic),)
    note = _span_note(clip, timeline)
    num_tokens = job.geometry.num_tokens(shaping.bucket)
    pieces = _pieces(clip, timeline, shaping, job.rules.fps)
    notes = (note, shaping.reason, _same_note(len(shaping.starts), len(pieces)))
    return tuple(
        LedgerRow(
            clip=piece,
            status="trimmed" if note else shaping.status,
            arithmetic=shaping.piece_arithmetic(number),
            reason="; ".join(text for text in notes if text),
            bucket=shaping.bucket,
            num_tokens=num_tokens,
            content=content,
            num_frames=_num_frames(timeline, piece),
            is_decoded=not facts.is_estimated,
        )
        for number, piece in pieces
    )


def _pieces(
    clip: Clip, timeline: Timeline, shaping: Shaping, fps: float
) -> Sequence[tuple[int, Clip]]:
    """The training clips that a listed clip gives, and which of its pieces each is."""
    if shaping.is_whole:
        return [(0, clip)]
    assert shaping.bucket is not None, clip
    part = cut(timeline, clip.span)
    spans = piece_spans(timeline, part, shaping.starts, shaping.bucket.frames, fps)
    return [(each.number, replace(clip, piece=each.span)) for each in spans]


def _same_note(num_starts: int, num_pieces: int) -> str:
    if num_pieces == num_starts:
        return ""
    left_out = num_starts - num_pieces
    begin = "begins" if left_out == 1 else "begin"
    return f"{left_out} of them {begin} in the same held frame as another, and train once with it"


def _num_frames(timeline: Timeline, clip: Clip) -> int:
    part = cut(timeline, clip.part)
    return part.stop - part.first


def _span_note(clip: Clip, timeline: Timeline) -> str:
    if clip.span is None or clip.span.end_s <= timeline.end_s:
        return ""
    if clip.span.end_s <= timeline.end_s + timeline.interval_s:
        return ""
    return f"the span ends at {clip.span.end_s:.2f} s but the file at {timeline.end_s:.2f} s"


def _in_processes(jobs: Sequence[_FileJob], num_workers: int) -> Iterator[_Rows]:
    """Rows of some jobs as they finish.

    Few jobs are in a pool at a time: when it breaks these run again, each alone, and a new pool
    takes over.
    """
    chunks = deque(_chunks(jobs, num_workers))
    while chunks:
        suspects: list[_FileJob] = []
        with _processes(num_workers) as pool:
            running: dict[Future[_Rows], Sequence[_FileJob]] = {}
            while running or (chunks and not suspects):
                while chunks and not suspects and len(running) < 2 * num_workers:
                    chunk = chunks.popleft()
                    try:
                        with signals_held_back():
                            running[pool.submit(_inspect_files, chunk)] = chunk
                    except BrokenProcessPool:
                        suspects += chunk
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    chunk = running.pop(future)
                    try:
                        yield future.result()
                    except BrokenProcessPool:
                        suspects += chunk
        for job in suspects:
            yield _alone(job)


def _processes(num_workers: int) -> ProcessPoolExecutor:
    """Processes that end with this one, also when it is killed; started deaf to signals."""
    with signals_held_back():  # Python's own helper process, if this starts it, hears no SIGHUP
        return ProcessPoolExecutor(num_workers, mp_context=get_context("spawn"), initializer=_begin)


def _begin() -> None:
    end_by_signals(signal.SIGTERM)  # which the pool sends when it breaks; Ctrl-C its caller hears
    exit_with_parent()


def _chunks(jobs: Sequence[_FileJob], num_workers: int) -> Iterator[Sequence[_FileJob]]:
    """Jobs that one process takes at once, so that sending them costs little."""
    size = min(_MAX_CHUNK, max(1, len(jobs) // (4 * num_workers)))
    for start in range(0, len(jobs), size):
        yield jobs[start : start + size]


def _inspect_files(jobs: Sequence[_FileJob]) -> _Rows:
    return [row for job in jobs for row in _inspect_file(job)]


def _alone(job: _FileJob) -> _Rows:
    with _processes(1) as pool:
        try:
            with signals_held_back():
                future = pool.submit(_inspect_file, job)
            return future.result()
        except BrokenProcessPool:
            reason = "reading the file ended the process that read it"
            return [(index, (rejected(clip, reason),)) for index, clip in job.clips]
