"""`arachne checkpoints RUN_DIR`: list, verify and prune a run's checkpoints; needs no torch."""

import argparse
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arachne.core.errors import CheckpointError, ConfigError, DataError
from arachne.core.local_path import local_path
from arachne.core.strict_json import to_json
from arachne.core.units import bytes_text

if TYPE_CHECKING:
    from arachne.trainer.checkpoint_files import StepFolder

_EXAMPLE = """example:
  arachne checkpoints runs/first                   list them
  arachne checkpoints runs/first --verify          compare every byte with its SHA-256
  arachne checkpoints runs/first --prune --keep 2  delete all but the two newest whole ones

exit code: 0 every checkpoint that was looked at is whole, 3 some are not, 2 there is none"""

_CONDITIONS = {
    "": "committed",
    ".partial": "unfinished",
    ".replaced": "replaced",
    ".deleting": "being deleted",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    """One folder of `checkpoints/`.

    Attributes:
        name: Folder.
        step: Optimizer steps done.
        condition: `committed`, `whole` (committed, and every byte was compared), `damaged`,
            `unfinished`, `replaced` (saved once more since), `being deleted`.
        num_bytes: Bytes of its files; None if this user may not list them.
        written: When it was last changed, UTC, ISO 8601.
        ranks: Ranks that wrote it; None if that cannot be read.
        loss: Last loss; None if there is none, or it cannot be read.
        fault: What is wrong with it; empty if nothing was found.
    """

    name: str
    step: int
    condition: str
    num_bytes: int | None
    written: str
    ranks: int | None = None
    loss: float | None = None
    fault: str = ""


def add_parser(subparsers: Any) -> None:
    """Register the verb."""
    parser = subparsers.add_parser(
        "checkpoints",
        help="list, verify and prune a run's checkpoints",
        description="List a run's checkpoints, newest first.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", type=local_path, help="folder of a run")
    parser.add_argument("--verify", action="store_true", help="hash every file")
    parser.add_argument("--prune", action="store_true", help="delete old ones; needs --keep")
    parser.add_argument("--keep", type=int, metavar="N", help="newest whole ones that stay")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the checkpoints; 3 if one of them has a fault, else 0.

    Raises:
        ConfigError: The options contradict each other, or a training holds the folder.
        CheckpointError: There is no checkpoint, or none that is whole is left to keep.
        DataError: The folder is not there.
    """
    from arachne.trainer.checkpoint_files import checkpoints_dir, step_folders

    run_dir: Path = arguments.run_dir
    if arguments.prune != (arguments.keep is not None):
        raise ConfigError("--prune and --keep N belong together; give both or neither")
    if arguments.keep is not None and arguments.keep < 1:
        raise ConfigError(f"--keep is {arguments.keep}; at least 1 checkpoint has to stay")
    if not run_dir.is_dir():
        name = repr(str(run_dir))
        found = f"{name} is no folder" if run_dir.exists() else f"there is no folder {name}"
        raise DataError(f"{found}; name the folder of a run")
    keep: int | None = arguments.keep
    pruned = () if keep is None else _pruned(run_dir, keep)
    folders = step_folders(checkpoints_dir(run_dir))
    if not folders:
        raise CheckpointError(
            f"run {str(run_dir)!r} has no checkpoint; a run saves one every checkpoint.every steps "
            "and at its end"
        )
    found = [_row(folder, is_hashed=arguments.verify) for folder in folders]
    rows = [row for row in found if row is not None]
    if arguments.json:
        print(to_json({"checkpoints": rows, "pruned": [row.name for row in pruned]}))
        return 3 if any(row.fault for row in rows) else 0
    _print_table(rows)
    if pruned:
        freed = bytes_text(sum(row.num_bytes or 0 for row in pruned))
        print(f"deleted {freed}: {', '.join(row.name for row in pruned)}")
    elif keep is not None:
        print("nothing to delete")
    return 3 if any(row.fault for row in rows) else 0


def _pruned(run_dir: Path, keep: int) -> tuple[CheckpointRow, ...]:
    """Delete what is older than the `keep` newest, and give what is gone.

    Counted from the newest that a run can go on from. What crashes left of earlier steps goes too.
    """
    from arachne.cli.run_dir import locked_run_dir
    from arachne.trainer.checkpoint import Keep, prune
    from arachne.trainer.checkpoint_contents import loadable
    from arachne.trainer.checkpoint_files import checkpoints_dir, disk_errors_named, step_folders
    from arachne.trainer.checkpoint_reader import newest

    with locked_run_dir(run_dir), disk_errors_named(run_dir):
        whole = newest(run_dir, lambda _: None, check=loadable)
        root = checkpoints_dir(run_dir)
        before = [_row(folder, is_hashed=False) for folder in step_folders(root)]
        (step,) = (f.step for f in step_folders(root) if f.path == whole)
        prune(run_dir, Keep(newest=keep), newest_step=step)
        return tuple(row for row in before if row is not None and not (root / row.name).exists())


def _row(folder: "StepFolder", *, is_hashed: bool) -> CheckpointRow | None:
    """What is known of a folder; None if a training that runs has just renamed or pruned it."""
    from arachne.trainer.checkpoint_contents import loadable
    from arachne.trainer.checkpoint_reader import read_index

    path = folder.path
    try:
        num_bytes = _total_bytes(path)
        written_s = path.stat().st_mtime
    except FileNotFoundError:
        return None
    state, fault, condition = None, "", _CONDITIONS[folder.suffix]
    if folder.suffix in ("", ".replaced"):
        try:
            state = (loadable(path) if is_hashed else read_index(path)).state
            condition = "whole" if is_hashed and not folder.suffix else condition
        except CheckpointError as error:
            condition = "damaged"
            fault = str(error).removeprefix(f"checkpoint {path.name}: ")
    return CheckpointRow(
        name=path.name,
        step=folder.step,
        condition=condition,
        num_bytes=num_bytes,
        written=datetime.fromtimestamp(written_s, UTC).isoformat(timespec="seconds"),
        ranks=state.world_size if state else None,
        loss=state.losses[-1] if state and state.losses else None,
        fault=fault,
    )


def _total_bytes(folder: Path) -> int | None:
    try:
        return sum(map(_num_bytes, folder.iterdir()))
    except FileNotFoundError:
        raise
    except OSError:
        return None


def _num_bytes(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return file.lstat().st_size  # a link that leads nowhere is a file too


def _print_table(rows: list[CheckpointRow]) -> None:
    """Columns without a frame, as wide as they need: each checkpoint is one line in a pipe too."""
    cells = [("checkpoint", "written (UTC)", "size", "ranks", "loss", "condition")]
    cells += [
        (
            row.name,
            row.written.removesuffix("+00:00").replace("T", " "),
            "" if row.num_bytes is None else bytes_text(row.num_bytes),
            "" if row.ranks is None else str(row.ranks),
            "" if row.loss is None else f"{row.loss:.4f}",
            row.fault or row.condition,
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for name, written, *figures, condition in cells:
        right = "  ".join(f"{f:>{w}}" for f, w in zip(figures, widths[2:-1], strict=True))
        print(f"{name:<{widths[0]}}  {written:<{widths[1]}}  {right}  {condition}")
