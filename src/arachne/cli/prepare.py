"""`arachne prepare RUN.toml`: decodes and encodes a run's clips into its cache before training."""

import argparse
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from arachne.cli.run_file import add_run_file, check_data, loaded_config
from arachne.core.errors import ConfigError, visible
from arachne.core.strict_json import to_json
from arachne.core.units import bytes_text, count_text, number_text, seconds_text

if TYPE_CHECKING:
    from arachne.cli.preparing import Estimate, Outcome, Rejected

_MOST_NAMED = 10
"""Rejected clips that a dry run names."""

_EXAMPLE = """example:
  arachne prepare examples/quickstart.toml --dry-run
  arachne prepare examples/quickstart.toml --workers 4
  torchrun --nproc-per-node 8 -m arachne prepare examples/quickstart.toml
  RAY_ADDRESS=auto arachne prepare examples/quickstart.toml --engine ray

Goes on where it was ended. Any number of these may run at once, on all machines that share the
cache. Training prepares what is missing by itself.
exit code: 0 done, 3 done but some clips were rejected, 2 cannot work; torchrun takes all but 0 for
a failure, so under it 3 is 0"""


def add_parser(subparsers: Any) -> None:
    """Register the verb."""
    parser = subparsers.add_parser(
        "prepare",
        help="decode and encode a run's clips ahead of training",
        description="Decode and encode a run's clips into its cache.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run_file(parser)
    parser.add_argument(
        "--workers", type=int, help="processes to start (default: one per GPU, or per CPU core)"
    )
    parser.add_argument(
        "--engine",
        choices=("processes", "ray"),
        default="processes",
        help="who starts them: this machine, or the Ray cluster that RAY_ADDRESS names, which sees "
        "the same files (without RAY_ADDRESS a Ray of its own)",
    )
    parser.add_argument(
        "--clip-timeout",
        type=float,
        metavar="SECONDS",
        help="a clip that is decoded for longer is rejected (default: 600)",
    )
    parser.add_argument(
        "--again", action="store_true", help="inspect again, and try rejected clips again"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be done; no more")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prepare; 3 if a clip was rejected, else 0.

    Raises:
        ArachneError: Something that the user can fix; see `core.errors`.
    """
    for option, value in (("workers", arguments.workers), ("clip-timeout", arguments.clip_timeout)):
        if value is not None and not value >= 1:
            raise ConfigError(f"--{option} is {number_text(value)}; it must be at least 1")
    if arguments.engine == "ray":
        _check_ray()
    config = loaded_config(arguments)
    check_data(config, is_listed=True, is_cached=not arguments.dry_run)

    # Only now: torch and diffusers take seconds to import.
    from arachne.cli.preparing import (
        Request,
        estimate,
        prepare_as_rank,
        prepare_on_processes,
        prepare_on_ray,
    )
    from arachne.runtime.torchrun import is_under_torchrun

    request = Request(
        workers=arguments.workers,
        time_limit_s=arguments.clip_timeout,
        is_again=arguments.again,
    )
    if arguments.dry_run:
        found = estimate(config, request)
        print(to_json(found) if arguments.json else _estimate_text(found))
        return 0
    if arguments.engine == "ray":
        outcome = prepare_on_ray(config, request)
    elif not is_under_torchrun():
        outcome = prepare_on_processes(config, request)
    elif arguments.workers is not None:
        raise ConfigError("--workers cannot be set under torchrun; use its --nproc-per-node")
    else:
        outcome = prepare_as_rank(config, request)
    if outcome is None:
        return 0
    print(to_json(outcome) if arguments.json else _outcome_text(outcome))
    return 3 if outcome.rejected and not is_under_torchrun() else 0


def _check_ray() -> None:
    """Refuse `--engine ray` where it cannot work, before anything is read.

    Raises:
        ConfigError: Ray is not installed, or torchrun has started workers.
    """
    from arachne.runtime.torchrun import is_under_torchrun

    if is_under_torchrun():
        raise ConfigError("--engine ray starts its own workers; run it without torchrun")
    if find_spec("ray") is None:
        raise ConfigError(
            "--engine ray needs Ray, which is not installed; pip install 'arachne[ray]'"
        )


def _estimate_text(estimate: "Estimate") -> str:
    usable = estimate.clips["kept"] + estimate.clips["trimmed"]
    lines = (*_rejected_lines(estimate.rejected), *_replaced_lines(estimate.replaced))
    return "".join(f"{visible(line)}\n" for line in lines) + (
        f"{count_text(usable, 'clip')} to train, {estimate.clips['rejected']} rejected\n"
        f"to make: latents of {count_text(estimate.missing_latents, 'clip')}, "
        f"{count_text(estimate.missing_texts, 'caption')}\n"
        f"size: {bytes_text(estimate.cache_bytes)} in the cache, "
        f"from {bytes_text(estimate.decoded_bytes)} of pixels"
    )


def _rejected_lines(rejected: "Sequence[Rejected]") -> list[str]:
    """The first clips that cannot be trained, those of one reason in one line."""
    names: dict[str, list[str]] = {}
    for each in rejected[:_MOST_NAMED]:
        names.setdefault(each.reason, []).append(each.clip)
    lines = [f"rejected {', '.join(clips)}: {reason}" for reason, clips in names.items()]
    if len(rejected) > _MOST_NAMED:
        more = count_text(len(rejected) - _MOST_NAMED, "clip")
        lines.append(f"rejected {more} more; --json names all")
    return lines


def _replaced_lines(names: Sequence[str]) -> list[str]:
    """Files that were taken as they are now."""
    shown = ", ".join(names[:_MOST_NAMED]) + (", …" if len(names) > _MOST_NAMED else "")
    files = count_text(len(names), "file")
    what = "has changed since it was" if len(names) == 1 else "have changed since they were"
    return [f"{files} {what} inspected, taken as now: {shown}"] if names else []


def _outcome_text(outcome: "Outcome") -> str:
    lines = [f"rejected {rejected.clip}: {rejected.reason}" for rejected in outcome.rejected]
    lines += _replaced_lines(outcome.replaced)
    usable = outcome.clips["kept"] + outcome.clips["trimmed"]
    lines.append(
        f"{count_text(usable, 'clip')} ready to train, {outcome.clips['rejected']} rejected; "
        f"{count_text(outcome.made, 'array')} made, {outcome.cached:,} cached before; "
        f"{seconds_text(outcome.wall_s)}"
    )
    return "\n".join(map(visible, lines))
