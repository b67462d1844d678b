"""`arachne profile RUN.toml`: measures this machine, and writes a calibrated cluster file."""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arachne.cli.counts import check_ranks
from arachne.cli.run_file import add_run_file, loaded_config
from arachne.cli.written_file import check_place, write_file
from arachne.core.errors import ConfigError
from arachne.core.local_path import local_path
from arachne.core.strict_json import to_json
from arachne.core.units import count_text, percent_text

if TYPE_CHECKING:
    from arachne.cost.calibration import Calibration
    from arachne.runtime.world import World
    from arachne.trainer.config import RunConfig

_EXAMPLE = """example:
  arachne profile examples/quickstart.toml --ranks 2 --output mine.toml
  arachne plan examples/quickstart.toml --cluster mine.tomlx2

Measures launches of the run's own model and shapes, on all ranks at once; trains nothing."""


def add_parser(subparsers: Any) -> None:
    """Register the verb."""
    parser = subparsers.add_parser(
        "profile",
        help="measure this machine, and write a cluster file",
        description="Measure this machine with a run's model and shapes; write a cluster file.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run_file(parser)
    parser.add_argument("--ranks", type=int, help="ranks (default: as for train)")
    parser.add_argument(
        "--output",
        type=local_path,
        default=Path("machine.toml"),
        metavar="FILE.toml",
        help="the cluster file to write (default: machine.toml)",
    )
    parser.add_argument("--json", action="store_true", help="print the cluster and its errors")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, write, and say how well the cost model reproduces what was measured; 0.

    Raises:
        ArachneError: The run file or the dataset cannot work, or the file cannot be written.
    """
    if arguments.ranks is not None:
        check_ranks("--ranks", arguments.ranks)
    path: Path = arguments.output
    _check_output(path)
    config = loaded_config(arguments)

    from arachne.cost.cluster_files import cluster_file_text
    from arachne.models.diffusers_module import import_transformer
    from arachne.runtime.launcher import run_ranks
    from arachne.runtime.world import default_num_ranks

    import_transformer(config.model.family)
    ranks = arguments.ranks or config.run.ranks or default_num_ranks(config.run.device)
    with tempfile.TemporaryDirectory() as folder:  # a run folder that nobody needs afterwards
        config = replace(config, run=replace(config.run, dir=folder))
        calibration: Calibration = run_ranks(
            ranks,
            _measure,
            (config,),
            device=config.run.device,
            timeout_s=config.run.timeout_s,
        )[0]
    errors = (
        f"|predicted / measured - 1| over {calibration.num_launches:,} launches: "
        f"median {percent_text(calibration.median_error, 1)}, "
        f"95th percentile {percent_text(calibration.p95_error, 1)}; "
        f"{count_text(calibration.num_outliers, 'outlier')}"
    )
    comment = f"Measured by `arachne profile` on {ranks} ranks with one model.\n{errors}"
    write_file(path, cluster_file_text(calibration.cluster, comment=comment))
    if arguments.json:
        print(to_json(calibration))
    else:
        print(f"{errors}\ncluster file: {path}; use it as --cluster {path}x{ranks}")
    return 0


def _check_output(path: Path) -> None:
    """Refuse a file that cannot be written, before minutes of measuring."""
    if path.suffix != ".toml":
        raise ConfigError(f"--output {str(path)!r} does not end in .toml; name it so")
    check_place(path)


def _measure(world: "World", config: "RunConfig") -> "Calibration":
    from arachne.cli.training_display import TrainingDisplay
    from arachne.trainer.dry_run import dry_run
    from arachne.trainer.measure import calibrated, guessed_cluster, warm_compiled_blocks
    from arachne.trainer.memory_reports import LESS_STATE, told_if_full
    from arachne.trainer.session import open_session

    with (
        TrainingDisplay(config, is_shown=world.rank == 0) as display,
        told_if_full(world, "before anything was measured", LESS_STATE),
    ):
        session = open_session(world, config, say=display.say, progress=display.progress)
        warm_compiled_blocks(session)
        dry_run(session, guessed_cluster(session))
        return calibrated(session)
