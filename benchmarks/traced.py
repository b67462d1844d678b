"""A function in a process of its own, of which strace fails or kills chosen system calls.

The process is forked with all imports made, and stops until strace holds it: so only the function's
own calls are counted, and a try takes some fifty milliseconds. Needs Linux and strace.
"""

import ctypes
import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

_CALL = re.compile(r"^(?:\[pid +\d+\] )?([a-z_0-9]+)\(", re.MULTILINE)
_PR_SET_PTRACER = 0x59616D61
"""From <linux/prctl.h>: under Yama only a tracer that was named may attach to a sibling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """How the process ended.

    Attributes:
        code: Its exit code; negative for a signal.
        said: What it wrote to stderr.
        calls: System calls by name, as far as they were traced.
    """

    code: int
    said: str
    calls: Counter[str]

    @property
    def is_killed(self) -> bool:
        """Whether it was ended by SIGKILL."""
        return self.code == -signal.SIGKILL


def why_no_strace() -> str:
    """Why nothing can be traced here; empty if it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    try:
        traced(lambda: None, "-e", "trace=exit_group")
    except RuntimeError as error:
        return str(error)
    return ""


def traced(function: Callable[[], None], *options: str) -> Traced:
    """Call a function in a forked process under `strace OPTIONS`; an error's text is `said`.

    Raises:
        RuntimeError: strace cannot attach to it.
    """
    log_read, log_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(log_read)
        _run(function, log_write)
    os.close(log_write)
    os.waitpid(pid, os.WUNTRACED)
    command = ["strace", "-f", "-p", str(pid), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
        assert strace.stderr is not None
        first = strace.stderr.readline()
        os.kill(pid, signal.SIGCONT if "attached" in first else signal.SIGKILL)
        log = strace.stderr.read()
    with os.fdopen(log_read) as file:
        said = file.read()
    _, status = os.waitpid(pid, 0)
    if "attached" not in first:
        raise RuntimeError(f"strace cannot attach: {first.strip()}")
    return Traced(
        code=os.waitstatus_to_exitcode(status), said=said, calls=Counter(_CALL.findall(log))
    )


def _run(function: Callable[[], None], log: int) -> None:
    """The life of the traced process."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)
        os.dup2(log, 2)
        os.kill(os.getpid(), signal.SIGSTOP)
        function()
        code = 0
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}".encode())
        code = 2
    os._exit(code)
