"""`arachne train RUN.toml`: trains on its own ranks, or as one rank under torchrun."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arachne.cli.counts import check_ranks
from arachne.cli.run_file import add_run_file, check_data, loaded_config
from arachne.core.errors import ConfigError
from arachne.reporting.wandb_log import check_installed
from arachne.runtime.torchrun import is_under_torchrun

if TYPE_CHECKING:
    from arachne.cli.run_dir import Resume

_EXAMPLE = """example:
  arachne train examples/quickstart.toml
  arachne train examples/quickstart.toml --ranks 4 --set optimizer.lr=2e-4
  arachne train examples/quickstart.toml --resume
  torchrun --nproc-per-node 2 -m arachne train examples/quickstart.toml

Ctrl-C, SIGTERM or a closed terminal (SIGHUP, but not under nohup) ends the run after its current
step, with a checkpoint; a second time ends it at once. Where torchrun starts the ranks again
(--max-restarts), they resume by themselves.
exit code: 0 done, 3 done but some clips were rejected, 2 cannot work, 130 interrupted by Ctrl-C,
143 by SIGTERM, 129 by SIGHUP; torchrun takes all but 0 for a failure, so under it 3, 129, 130 and
143 are 0"""


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
    parser.add_argument(
        "--resume-if-any",
        action="store_true",
        help="the same if there is a checkpoint, else begin; for jobs that are submitted again",
    )
    parser.add_argument(
        "--rescan",
        action="store_true",
        help="when resuming, read the dataset again, and go on with the clips that it has now",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Train to the end, or to a signal.

    Raises:
        ArachneError: Something that the user can fix; see `core.errors`.
    """
    config = loaded_config(arguments)
    if arguments.ranks is not None:
        check_ranks("--ranks", arguments.ranks)
        config = replace(config, run=replace(config.run, ranks=arguments.ranks))
    _check_resuming(arguments)
    check_installed(config.logging.wandb)

    from arachne.cli.run_dir import opened_run_dir, resumes

    resume: Resume = "must" if arguments.resume else "no"
    if arguments.resume_if_any:
        resume = "if-any"
    if config.run.ranks and not is_under_torchrun():
        check_ranks("run.ranks", config.run.ranks)
    check_data(config, is_listed=resume == "no")
    if is_under_torchrun():
        if arguments.ranks is not None:
            raise ConfigError("--ranks cannot be set under torchrun; use its --nproc-per-node")
        from arachne.cli.training import train_here

        train_here(config, resume=resume, rescan=arguments.rescan)
        return 0  # torchrun takes any other code for a failure, and may start the ranks again
    does_resume = resumes(Path(config.run.dir), resume)
    with opened_run_dir(config, resume=does_resume, rescan=arguments.rescan):
        # Only now that nothing is refused: torch and diffusers take seconds to import.
        from arachne.cli.training import train_on_ranks

        finished = train_on_ranks(config, resume=does_resume, rescan=arguments.rescan)
    if finished.stopped_by is not None:
        return 128 + finished.stopped_by
    return 3 if finished.num_rejected else 0


def _check_resuming(arguments: argparse.Namespace) -> None:
    if arguments.resume and arguments.resume_if_any:
        raise ConfigError("--resume and --resume-if-any contradict each other; give one of them")
    if arguments.rescan and not (arguments.resume or arguments.resume_if_any):
        raise ConfigError("--rescan is for a run that is resumed; add --resume, or leave it out")
