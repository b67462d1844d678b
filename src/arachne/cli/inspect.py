"""`arachne inspect DATA`: what would become of every clip of a dataset; writes nothing."""

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

from arachne.core.errors import ConfigError
from arachne.core.families import FAMILIES, family_named
from arachne.core.ledger import Ledger
from arachne.core.strict_json import to_json
from arachne.core.strict_toml import load_toml
from arachne.reporting.ledger_table import bucket_table, ledger_summary, ledger_table
from arachne.trainer.config import DataSettings, RunConfig

if TYPE_CHECKING:
    from arachne.data.shapes import ShapeRules

_EXAMPLE = """example:
  arachne inspect clips/ --fps 16 --resolution 480 --frame-buckets 1,17,33,49,65,81
  arachne inspect run.toml --set data.resolution=256

exit code: 0 every clip is usable, 3 some were rejected, 2 the dataset cannot be read"""


def add_parser(subparsers: Any) -> None:
    """Register the verb."""
    parser = subparsers.add_parser(
        "inspect",
        help="show what becomes of every clip of a dataset",
        description="Reads a dataset and prints its ledger: frames, bucket, reasons. "
        "Writes nothing.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "data", type=Path, metavar="DATA", help="the dataset's folder, or a run.toml"
    )
    parser.add_argument("--fps", type=float, help="frames per second that clips are retimed to")
    parser.add_argument("--resolution", type=int, help="a frame has at most N*N pixels")
    parser.add_argument("--frame-buckets", help="legal lengths, for example 1,17,33")
    parser.add_argument("--missing-caption", choices=("error", "empty"), help="stop, or go on")
    parser.add_argument("--family", choices=tuple(FAMILIES), help="model family (default: wan)")
    parser.add_argument("--workers", type=int, help="processes (default: one per CPU, up to 8)")
    parser.add_argument("--rows", type=int, default=200, help="most clips in the table")
    parser.add_argument("--json", action="store_true", help="print JSON with every clip")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="change a setting of run.toml",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the ledger; 3 if a clip was rejected, else 0.

    Raises:
        ConfigError: An option or the run file cannot work.
        DataError: The dataset cannot be read.
    """
    from arachne.data.inspect import inspect_dataset  # PyAV loads FFmpeg: not before it is needed

    settings, family = _settings(arguments)
    rules = _rules(settings)
    with _progress() as progress:
        task = progress.add_task("inspecting", total=None)
        ledger = inspect_dataset(
            Path(settings.path),
            rules,
            family_named(family).geometry,
            settings.missing_caption,
            _num_workers(arguments.workers),
            lambda done, total: progress.update(task, completed=done, total=total),
        )
    if arguments.json:
        print(_as_json(ledger))
    else:
        console = Console()
        console.print(ledger_table(ledger, arguments.rows))
        console.print(bucket_table(ledger))
        console.print(ledger_summary(ledger))
    return 3 if ledger.counts["rejected"] else 0


def _settings(arguments: argparse.Namespace) -> tuple[DataSettings, str]:
    """The `[data]` section and the family, from the run file or defaults, then the options."""
    if arguments.data.suffix == ".toml":
        config = load_toml(arguments.data, RunConfig, overrides=arguments.overrides)
        settings, family = config.data, config.model.family
    else:
        if arguments.overrides:
            raise ConfigError("--set changes settings of a run file; DATA is a folder")
        settings, family = DataSettings(path=str(arguments.data), cache="unused"), "wan"
    given: dict[str, Any] = {
        "fps": arguments.fps,
        "resolution": arguments.resolution,
        "frame_buckets": _lengths(arguments.frame_buckets),
        "missing_caption": arguments.missing_caption,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    return replace(settings, **changes), arguments.family or family


def _lengths(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(
            f"--frame-buckets {text!r} is not a list of numbers; write for example 1,17,33"
        ) from error


def _rules(settings: DataSettings) -> "ShapeRules":
    from arachne.data.shapes import ShapeRules

    return ShapeRules(
        fps=settings.fps, resolution=settings.resolution, frame_buckets=settings.frame_buckets
    )


def _num_workers(workers: int | None) -> int:
    if workers is not None and workers < 1:
        raise ConfigError(f"--workers is {workers}; it must be at least 1")
    return workers or min(os.cpu_count() or 1, 8)


def _progress() -> Progress:
    """A bar on standard error; none where that is not a terminal."""
    return Progress(
        *Progress.get_default_columns()[:2],
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


def _as_json(ledger: Ledger) -> str:
    return to_json({"counts": ledger.counts, "rows": ledger.rows})
