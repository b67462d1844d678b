"""Standard streams that may be closed, full, or left by their reader, without ending the work.

What a command prints is seldom all that it does: a training goes on for days after its terminal
has gone. So a write that fails is noted, and what comes after it goes nowhere; who wants to know
asks for `error` when the work is done.
"""

import os
import sys
from contextlib import suppress
from typing import Any, TextIO, cast


class LastingStream:
    """A text stream whose writes do not fail: all but that is the stream's own.

    Args:
        stream: Where the text goes; of another LastingStream, what that one writes to.
    """

    def __init__(self, stream: TextIO) -> None:
        while isinstance(stream, LastingStream):
            stream = stream._stream
        self._stream = stream
        self._error: OSError | None = None

    @property
    def error(self) -> OSError | None:
        """Why text was lost; None if none was."""
        return self._error

    def write(self, text: str) -> int:
        """Write it, or lose it."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._lose(error)
            return len(text)

    def flush(self) -> None:
        """Let all that was written go where it belongs, or lose it."""
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _lose(self, error: OSError) -> None:
        """Note it; what waits in the stream's buffers must not fail once more, here or at exit."""
        self._error = self._error or error
        with suppress(OSError, ValueError):  # a stream that is no file has no number
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


def keep_standard_streams() -> LastingStream:
    """From now on no `print` of this process fails; gives its standard output.

    A stream that was closed is opened: otherwise the next file would get its number, and what
    other processes and C libraries print with it. What is printed to it is lost; standard output
    notes it, and standard error does not, since nobody could be told.
    """
    # In this order: the lowest free number is taken.
    for name, flags, mode in (
        ("stdin", os.O_RDONLY, "r"),
        ("stdout", os.O_RDONLY, "w"),  # so that writing fails
        ("stderr", os.O_WRONLY, "w"),
    ):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, flags)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))
    output = LastingStream(sys.stdout)
    sys.stdout = cast(TextIO, output)
    sys.stderr = cast(TextIO, LastingStream(sys.stderr))
    return output
