"""A process that looks at the footers of Parquet files first: of some damaged ones pyarrow ends it.

One process looks at all footers that a process asks about, for as long as it survives them; then
another one does. It is started anew rather than forked: a fork may wait for ever for a lock that
some other thread held when it was made.
"""

import atexit
import faulthandler
import io
import os
import resource
import select
import subprocess
import sys
import threading
import time
from typing import IO, Any, BinaryIO

import pyarrow  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet  # pyright: ignore[reportMissingTypeStubs]

from arachne.core.child_python import module_command, module_environment
from arachne.core.errors import DataError
from arachne.core.held_signals import signals_held_back
from arachne.core.refused_write import refusal
from arachne.core.units import bytes_text
from arachne.data.remote_path import DatasetPath

# pyarrow ships no types.
pa: Any = pyarrow
pq: Any = pyarrow.parquet

_MAGIC = b"PAR1"
_LENGTH_BYTES = 4

_QUESTION_BYTES = 8
"""Of a footer's length, which comes before it."""

_WHOLE, _REFUSED, _READY = b"1", b"0", b"r"

_MOST_FOOTER_BYTES = 2**27
"""*Assumption*: tens of times what the largest published tables have; pyarrow takes five times as
much memory for it."""

_MOST_LOOKS = 2
"""A footer that ends two processes is damaged; one may have been ended by somebody else."""

_LOOK_S = 60.0
"""*Assumption*: no footer takes longer to look at, the start of a process included."""


class _Looker:
    """The process that looks, as the process sees it that asked for it; one question at a time."""

    def __init__(self) -> None:
        try:
            with signals_held_back():
                self._process = subprocess.Popen(
                    module_command("arachne.data.footer_look"),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,  # where C++ says why it ends
                    env=module_environment(),
                    start_new_session=True,  # signals from a terminal are not for it
                )
        except OSError as error:
            raise _no_start(refusal(error)) from error
        self.asked_by = os.getpid()
        self.is_ready = False

    def finding(self, footer: bytes) -> bytes:
        """What it says about a footer; nothing if the look, or its start, ended it.

        Raises:
            TimeoutError: It does not answer.
        """
        asked, answers = self._process.stdin, self._process.stdout
        if asked is None or answers is None:
            raise RuntimeError("the process that looks at footers has no pipes")
        until_s = time.monotonic() + _LOOK_S
        if not self.is_ready:
            self.is_ready = _answer(answers, until_s) == _READY
            if not self.is_ready:
                return b""
        question = memoryview(len(footer).to_bytes(_QUESTION_BYTES) + footer)
        os.set_blocking(asked.fileno(), False)
        while question:
            if not select.select([], [asked], [], max(until_s - time.monotonic(), 0.0))[1]:
                raise TimeoutError
            try:
                question = question[os.write(asked.fileno(), question) :]
            except BrokenPipeError:
                return b""
        return _answer(answers, until_s)

    def end(self) -> None:
        """End it; it has nothing to lose."""
        self._process.kill()
        self._process.communicate()


def _answer(answers: IO[bytes], until_s: float) -> bytes:
    if not select.select([answers], [], [], max(until_s - time.monotonic(), 0.0))[0]:
        raise TimeoutError
    return os.read(answers.fileno(), 1)


def _no_start(reason: str) -> DataError:
    return DataError(
        f"no process can be started that looks at Parquet files: {reason}; end other processes, or "
        "raise the limits of ulimit -u, ulimit -n and ulimit -v"
    )


_lock = threading.Lock()
_looker: _Looker | None = None


def check_footer(path: DatasetPath, name: str) -> None:
    """Let another process look at a Parquet file's footer first; `name` is what messages call it.

    Raises:
        DataError: The look ended that process, or it does not end; or the footer is too large.
        OSError: The file cannot be read.
    """
    footer = _footer_of(path, name)
    try:
        finding = _finding(footer)
    except TimeoutError:
        raise DataError(
            f"{name} cannot be read as Parquet: a look at its footer of {len(footer):,} bytes "
            f"takes more than {_LOOK_S:g} s; is the machine overloaded? Try again"
        ) from None
    if finding != _WHOLE:
        raise DataError(f"{name} cannot be read as Parquet: its footer is damaged")


def _footer_of(path: DatasetPath, name: str) -> bytes:
    """The end of a file, from the beginning of its footer; nothing, if it has none."""
    with path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        mark = _LENGTH_BYTES + len(_MAGIC)
        file.seek(max(size - mark, 0))
        tail = file.read(mark)
        if not tail.endswith(_MAGIC):
            return b""
        num_bytes = min(mark + int.from_bytes(tail[:_LENGTH_BYTES], "little"), size)
        if num_bytes > _MOST_FOOTER_BYTES:
            raise DataError(
                f"{name} cannot be read as Parquet: its footer has {bytes_text(num_bytes)}, and "
                f"at most {bytes_text(_MOST_FOOTER_BYTES)} are read; write it in fewer row groups"
            )
        file.seek(size - num_bytes)
        return file.read(num_bytes)


def _finding(footer: bytes) -> bytes:
    global _looker
    has_started = False
    with _lock:
        for _ in range(_MOST_LOOKS):
            if _looker is None or _looker.asked_by != os.getpid():
                _looker = _Looker()
                atexit.register(_end)
            finding = b""
            try:
                finding = _looker.finding(footer)
            finally:
                has_started = _looker.is_ready
                if not finding:
                    _end()
            if finding:
                return finding
    if not has_started:
        raise _no_start("it ends at once")
    return b""


def _end() -> None:
    """End the process that looks, unless it is one that a parent of this process asked for."""
    global _looker
    atexit.unregister(_end)
    if _looker is not None and _looker.asked_by == os.getpid():
        _looker.end()
    _looker = None


def _look(footer: bytes) -> bytes:
    """Ask a footer all that is asked of it elsewhere."""
    try:
        metadata = pq.read_metadata(io.BytesIO(_MAGIC + footer))
        for group in range(metadata.num_row_groups):
            rows = metadata.row_group(group)
            for index in range(rows.num_columns):
                column = rows.column(index)
                statistics = column.statistics
                _ = column.path_in_schema, column.total_uncompressed_size
                _ = statistics and (statistics.has_null_count, statistics.null_count)
    except (OSError, ValueError, pa.ArrowException):
        return _REFUSED
    return _WHOLE


def _look_at_all(questions: BinaryIO, answers: BinaryIO) -> None:
    """Look at footers, each after its length, until there are no more."""
    answers.write(_READY)
    answers.flush()
    while length := questions.read(_QUESTION_BYTES):
        answers.write(_look(questions.read(int.from_bytes(length))))
        answers.flush()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.disable()
    _look_at_all(sys.stdin.buffer, sys.stdout.buffer)
