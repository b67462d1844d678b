"""A run's ledger as it was, until the part of the run that changed it has begun to train.

`--rescan` makes a new ledger, and preparing rejects clips that cannot be decoded any more. If that
part of the run then ends before its first step (refused, interrupted, killed), the ledger that the
checkpoint's clips are in must stand again. No torch.
"""

import shutil
from pathlib import Path

from arachne.core.errors import DamagedFileError, DataError
from arachne.core.new_file import written_aside
from arachne.core.refused_write import fix_of, refusal_at

KEPT = "ledger.before.parquet"
"""Name of the copy, beside the ledger."""


def keep_ledger(ledger: Path) -> None:
    """Set a copy of the ledger aside, unless one is there already.

    Raises:
        DataError: It cannot be read, or the copy not be written.
    """
    kept = ledger.with_name(KEPT)
    if kept.exists() or not ledger.is_file():
        return
    try:
        with written_aside(kept) as partial:
            shutil.copyfile(ledger, partial)
    except OSError as error:
        raise DataError(
            f"{str(kept)!r} cannot be written: {refusal_at(error, kept)}; {fix_of(error)}"
        ) from error


def give_back_ledger(ledger: Path) -> None:
    """Let the ledger that was set aside stand again; without one, all stays as it is.

    A damaged copy is none. One that cannot be read now stays: it is the run's only ledger.

    Raises:
        DataError: It may not be read, needs more memory than there is, or is of another version.
    """
    kept = ledger.with_name(KEPT)
    if not kept.is_file():
        return
    from arachne.data.manifest import read_manifest  # with pyarrow, which takes a while to import

    try:
        read_manifest(
            kept,
            remedy="it is the run's ledger from before it was made anew: go on with the version of "
            "Arachne that wrote it, or move it away to have the dataset read again",
        )
    except DamagedFileError:
        kept.unlink()
    else:
        kept.replace(ledger)


def accept_ledger(ledger: Path) -> None:
    """The run goes on with its ledger as it is now."""
    ledger.with_name(KEPT).unlink(missing_ok=True)
