"""The `arachne` command: finds the verb, and turns errors into one line and an exit code.

0 done; 2 something that the user can fix; 3 done, but some inputs were rejected; 1 a bug of ours;
130 interrupted by Ctrl-C, 143 by SIGTERM.
"""

import argparse
import atexit
import errno
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from arachne import __version__
from arachne.cli.interruption import SAID, end_on_signals, exit_on_signals
from arachne.core.errors import ArachneError, Interrupted

_DESCRIPTION = "Train text-to-video diffusion transformers on clips of every shape."
_EXAMPLE = """example:
  arachne demo                           the whole promise on small real clips, in minutes
  arachne inspect clips/                 what would become of every clip
  arachne train run.toml --ranks 2       train; also: torchrun --nproc-per-node 2 -m arachne …"""


_QUIET_TRACKER = "ignore:resource_tracker"
"""Python's own helper warns of the semaphores of processes that were killed, and removes them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; gives its exit code.

    Without `argv` it is this process's own command line, and signals are the command's.
    """
    if argv is not None:
        return _ended(argv)
    end_on_signals()
    codes: list[int] = []
    atexit.register(_leave, codes)  # first of all: what is registered later is done before it
    codes.append(_ended(None))
    exit_on_signals(codes[0])
    return codes[0]


def _leave(codes: list[int]) -> None:
    """End without taking apart all that was imported: with torch that takes 1.5 s of a core.

    Nothing is done where the command ended by a bug of ours.
    """
    if codes:
        sys.stderr.flush()
        os._exit(codes[0])


def _ended(argv: Sequence[str] | None) -> int:
    """The exit code of one command, after its errors were said."""
    filters = os.environ.get("PYTHONWARNINGS", "").split(",")
    os.environ["PYTHONWARNINGS"] = ",".join({*filters, _QUIET_TRACKER} - {""})
    try:
        return _run(argv)
    except ArachneError as error:
        print(f"arachne: {error}", file=sys.stderr)
        return 2
    except Interrupted as interruption:
        print(SAID, file=sys.stderr)
        return 128 + interruption.number
    except KeyboardInterrupt:
        print(SAID, file=sys.stderr)
        return 130
    except BrokenPipeError:
        _drop_output()  # its reader has gone, for example `| head`
        return 0
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _drop_output()
        print("arachne: no space left for what it writes; free some", file=sys.stderr)
        return 2


def _run(argv: Sequence[str] | None) -> int:
    """The exit code of a verb, after all that it printed was written.

    Raises:
        OSError: It cannot be written; Python itself would only find out when nobody listens.
        SystemExit: It was asked for help, or in a way that it does not know.
    """
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit:
        sys.stdout.flush()
        raise
    code = arguments.run(arguments)
    sys.stdout.flush()
    return code


def _drop_output() -> None:
    """Let what was printed and not yet written go nowhere, instead of failing once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Parser(argparse.ArgumentParser):
    """One whose errors are one line too, also those of its verbs."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and where to read what is right."""
        self.exit(2, f"arachne: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="arachne",
        description=_DESCRIPTION,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"arachne {__version__}")
    subparsers = parser.add_subparsers(metavar="VERB", required=True)
    for verb in _verbs():
        verb.add_parser(subparsers)
    return parser


def _verbs() -> tuple[Any, ...]:
    """One module for each verb; imported late, so that Ctrl-C meanwhile is an interruption too."""
    from arachne.cli import (
        checkpoints,
        compare,
        doctor,
        export,
        inspect,
        plan,
        prepare,
        profile,
        report,
        sample,
        train,
    )
    from arachne.cli.demo import command as demo

    return (
        demo,
        inspect,
        prepare,
        plan,
        compare,
        profile,
        train,
        sample,
        export,
        report,
        checkpoints,
        doctor,
    )
