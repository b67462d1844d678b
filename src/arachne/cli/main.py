"""The `arachne` command: finds the verb, and turns errors into one line and an exit code.

0 done; 2 something that the user can fix; 3 done, but some inputs were rejected; 1 a bug of ours;
129 ended by SIGHUP, 130 by Ctrl-C, 143 by SIGTERM.

A command whose output cannot be written works on to its end. It is then 2 if the output was lost,
but of a reader that left, such as `| head`, nothing is said.
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
from arachne.core.lasting_streams import LastingStream, keep_standard_streams
from arachne.core.refused_write import FULL, REFUSED, fix_of, refusal

_DESCRIPTION = "Train text-to-video diffusion transformers on clips of every shape."
_EXAMPLE = """example:
  arachne demo                           the whole promise on small real clips, in minutes
  arachne inspect clips/                 what would become of every clip
  arachne train run.toml --ranks 2       train; also: torchrun --nproc-per-node 2 -m arachne …"""


_NAME_SHOWN = 60
"""Characters of a name that the system refuses."""

_QUIET_TRACKER = "ignore:resource_tracker"
"""Python's own helper warns of the semaphores of processes that were killed, and removes them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; gives its exit code.

    Without `argv` it is this process's own command line, and signals are the command's.
    """
    if argv is not None:
        before = sys.stdout, sys.stderr
        try:
            return _ended(argv)
        finally:
            sys.stdout, sys.stderr = before
    end_on_signals()
    # Processes that it starts import nothing from the folder that the user stands in.
    os.environ["PYTHONSAFEPATH"] = "1"
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
    output = keep_standard_streams()
    try:
        code = _of_verb(argv)
    except SystemExit:  # it was asked for help, or in a way that it does not know
        if _is_said(output):
            raise
        return 2
    except ArachneError as error:
        print(f"arachne: {error}", file=sys.stderr)
        return 2
    except Interrupted as interruption:
        print(SAID, file=sys.stderr)
        return 128 + interruption.number
    except KeyboardInterrupt:
        print(SAID, file=sys.stderr)
        return 130
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            shown = str(error.filename)[:_NAME_SHOWN]
            print(f"arachne: a file's name is too long: {shown!r}…", file=sys.stderr)
            return 2
        if error.errno in REFUSED and error.filename is not None:
            where = repr(str(error.filename))
            said = f"{where} cannot be used: {refusal(error)}; {fix_of(error)}"
            print(f"arachne: {said}", file=sys.stderr)
            return 2
        if error.errno not in FULL:
            raise
        where = repr(error.filename) if error.filename else "a file"
        print(f"arachne: cannot write {where}: {refusal(error)}; make room", file=sys.stderr)
        return 2
    return code if _is_said(output) else 2


def _of_verb(argv: Sequence[str] | None) -> int:
    arguments = _parser().parse_args(argv)
    return arguments.run(arguments)


def _is_said(output: LastingStream) -> bool:
    """Whether all that it printed was written, or its reader wanted no more; else says why not."""
    output.flush()  # Python itself would only find out when nobody listens
    if output.error is None or output.error.errno == errno.EPIPE:
        return True
    print(
        f"arachne: standard output cannot be written: {refusal(output.error)}; what it printed "
        "is lost; send it elsewhere",
        file=sys.stderr,
    )
    return False


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
