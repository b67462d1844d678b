"""`arachne demo`: prepare, plan, train, check the promise, resume, sample, report."""

import argparse
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from arachne.core.errors import ConfigError
from arachne.core.local_path import local_path

if TYPE_CHECKING:
    from arachne.cli.demo.on_ranks import DemoResult
    from arachne.trainer.config import RunConfig

_EXAMPLE = """example:
  arachne demo                     about four minutes on two cores; files in runs/demo
  arachne demo --steps 20          a shorter training, whose loss falls less
  arachne demo --ranks 4 --dir runs/four"""

_MARK = "made-by-arachne-demo.txt"
_PREPARED = ("clips", "cache", _MARK)
"""What a second demo takes over from the first; everything else is made anew."""


def add_parser(subparsers: Any) -> None:
    """Register the verb."""
    parser = subparsers.add_parser(
        "demo",
        help="the whole promise on small real clips, in minutes",
        description="Train a small Wan on real clips that a registry package ships: inspect, "
        "encode, plan, train, check gradients, race strategies, resume, sample, report.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--dir", type=local_path, default=Path("runs/demo"), help="folder of the run"
    )
    parser.add_argument("--steps", type=int, default=140, help="training steps (default: 140)")
    parser.add_argument("--ranks", type=int, default=0, help="ranks (default: one per core, 2-8)")
    parser.add_argument(
        "--race", type=int, default=9, metavar="N", help="steps per raced strategy (default: 9)"
    )
    parser.add_argument("--json", action="store_true", help="print summary.json at the end")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; 130 if it was interrupted.

    Raises:
        ArachneError: The clips are not installed, or an option cannot work.
    """
    for name, lowest in (("steps", 4), ("race", 1), ("ranks", 0)):
        if getattr(arguments, name) < lowest:
            raise ConfigError(
                f"--{name} is {getattr(arguments, name)}; it must be {lowest} or more"
            )
    began_s = time.monotonic()
    console = Console(highlight=False, soft_wrap=True)
    folder: Path = arguments.dir
    config = _fresh_run(folder, arguments, console)
    _show_ledger(config, console)

    # Only now: torch and diffusers take seconds to import.
    from arachne.cli.demo.on_ranks import train_and_check
    from arachne.cli.demo.outcome import (
        check_resume,
        sample_video,
        show_checks,
        show_end,
        write_summary,
    )
    from arachne.models.diffusers_module import import_transformer
    from arachne.runtime.launcher import run_ranks
    from arachne.runtime.watched import collective_timeout_s
    from arachne.runtime.world import default_num_ranks

    _headline(console, "train by cascades, then check gradients and race strategies")
    import_transformer(config.model.family)
    config = replace(
        config,
        run=replace(config.run, ranks=config.run.ranks or default_num_ranks(config.run.device)),
    )
    result: DemoResult = run_ranks(
        config.run.ranks,
        train_and_check,
        (config, arguments.race),
        device=config.run.device,
        timeout_s=collective_timeout_s(config.run.timeout_s),
    )[0]
    if result.race is None:
        return 130
    show_checks(result, console)
    _headline(console, "resume on another number of ranks")
    resume_error = check_resume(config, result, console)
    _headline(console, "sample a video")
    psnr_db = sample_video(config, console)
    summary = write_summary(
        config, result, resume_error, psnr_db, wall_s=time.monotonic() - began_s
    )
    _headline(console, "done")
    show_end(summary, folder, console, as_json=arguments.json)
    return 0


def _fresh_run(folder: Path, arguments: argparse.Namespace, console: Console) -> "RunConfig":
    """Empty the folder of an earlier demo, make the dataset, and write the run file."""
    from arachne.cli.demo.dataset import make_dataset
    from arachne.cli.demo.settings import demo_config
    from arachne.cli.run_dir import write_resolved
    from arachne.reporting.run_files import RESOLVED_CONFIG

    if folder.exists() and any(folder.iterdir()) and not (folder / _MARK).is_file():
        raise ConfigError(
            f"--dir {str(folder)!r} holds files that no demo made; name an empty or new folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.name not in _PREPARED:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    (folder / _MARK).write_text("made by `arachne demo`, which empties this folder first\n")
    config = demo_config(folder, steps=arguments.steps, ranks=arguments.ranks)
    make_dataset(Path(config.data.path))
    write_resolved(config, folder / "run.toml")
    write_resolved(config, folder / RESOLVED_CONFIG)
    console.print(escape(f"Arachne's demo: everything it makes lies in {folder}"))
    return config


def _show_ledger(config: "RunConfig", console: Console) -> None:
    """What `arachne inspect` says of the dataset."""
    import os

    from arachne.core.families import family_named
    from arachne.data.inspect import inspect_dataset
    from arachne.data.manifest import write_manifest
    from arachne.reporting.ledger_table import bucket_table, ledger_summary, ledger_table
    from arachne.reporting.run_files import MANIFEST

    _headline(console, f"inspect {config.data.path}")
    ledger = inspect_dataset(
        Path(config.data.path),
        config.data.shape_rules,
        family_named(config.model.family).geometry,
        config.data.missing_caption,
        num_workers=len(os.sched_getaffinity(0)),
    )
    write_manifest(ledger, Path(config.run.dir) / MANIFEST)
    console.print(ledger_table(ledger, 100))
    console.print(bucket_table(ledger))
    console.print(ledger_summary(ledger))


def _headline(console: Console, text: str) -> None:
    console.rule(escape(text), align="left", style="dim")
