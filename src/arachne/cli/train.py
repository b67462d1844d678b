"""`arachne train RUN.toml`: trains on its own ranks, or as one rank under torchrun."""

import argparse
from dataclasses import replace
from typing import Any

from arachne.cli.run_file import add_run_file, loaded_config
from arachne.core.errors import ConfigError

_EXAMPLE = """example:
  arachne train examples/quickstart.toml
  arachne train examples/quickstart.toml --ranks 4 --set optimizer.lr=2e-4
  arachne train examples/quickstart.toml --resume
  torchrun --nproc-per-node 2 -m arachne train examples/quickstart.toml

Ctrl-C ends the run after its current step, with a checkpoint; a second time ends it at once.
exit code: 0 done, 3 done but some clips were rejected, 2 cannot work, 130 interrupted; torchrun
takes all but 0 for a failure, so under it 3 and 130 are 0"""


def add_parser(subparsers: Any) -> None:
    """Register the verb."""
    parser = subparsers.add_parser(
        "train",
        help="train a model as a run file says",
        description="Train a model as a run file says.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run_file(parser)
    parser.add_argument(
        "--ranks", type=int, help="ranks to start (default: one per GPU, or per CPU core)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on from the newest whole checkpoint"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Train to the end, or to a signal.

    Raises:
        ArachneError: Something that the user can fix; see `core.errors`.
    """
    config = loaded_config(arguments)
    if arguments.ranks is not None:
        if arguments.ranks < 1:
            raise ConfigError(f"--ranks is {arguments.ranks}; it must be at least 1")
        config = replace(config, run=replace(config.run, ranks=arguments.ranks))

    # Only now: torch and diffusers take seconds to import.
    from arachne.cli.run_dir import opened_run_dir
    from arachne.cli.training import train_here, train_on_ranks
    from arachne.runtime.world import is_under_torchrun

    if is_under_torchrun():
        if arguments.ranks is not None:
            raise ConfigError("--ranks cannot be set under torchrun; use its --nproc-per-node")
        finished = train_here(config, resume=arguments.resume)
    else:
        with opened_run_dir(config, resume=arguments.resume):
            finished = train_on_ranks(config, resume=arguments.resume)
    if is_under_torchrun():
        return 0  # torchrun takes any other code for a failure, and may start the ranks again
    if finished.was_stopped:
        return 130
    return 3 if finished.num_rejected else 0
