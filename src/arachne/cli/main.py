"""The `arachne` command: finds the verb, and turns errors into one line and an exit code.

0 done; 2 something that the user can fix; 3 done, but some inputs were rejected; 1 a bug of ours;
130 interrupted by Ctrl-C, 143 by SIGTERM.
"""

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from typing import Any

from arachne import __version__
from arachne.core.errors import ArachneError, Interrupted

_DESCRIPTION = "Train text-to-video diffusion transformers on clips of every shape."
_EXAMPLE = """example:
  arachne demo                           the whole promise on small real clips, in minutes
  arachne inspect clips/                 what would become of every clip
  arachne train run.toml --ranks 2       train; also: torchrun --nproc-per-node 2 -m arachne …"""


_QUIET_TRACKER = "ignore:resource_tracker"
"""Python's own helper warns of the semaphores of processes that were killed, and removes them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; gives its exit code."""
    filters = os.environ.get("PYTHONWARNINGS", "").split(",")
    os.environ["PYTHONWARNINGS"] = ",".join({*filters, _QUIET_TRACKER} - {""})
    try:
        arguments = _parser().parse_args(argv)
        code = arguments.run(arguments)
        sys.stdout.flush()  # here, where it can still be said that it fails
        return code
    except ArachneError as error:
        print(f"arachne: {error}", file=sys.stderr)
        return 2
    except Interrupted as interruption:
        print("arachne: interrupted", file=sys.stderr)
        return 128 + interruption.number
    except KeyboardInterrupt:
        print("arachne: interrupted", file=sys.stderr)
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


def _drop_output() -> None:
    """Let what was printed and not yet written go nowhere, instead of failing once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
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
