"""A run's ledger as it was, until the part of the run that changed it has begun to train.

`--rescan` makes a new ledger, and preparing rejects clips that cannot be decoded any more. If that
part of the run then ends before its first step (refused, interrupted, killed), the ledger that the
checkpoint's clips are in must stand again. No torch.
"""

import os
import shutil
from pathlib import Path

from arachne.core.errors import DataError
from arachne.core.refused_write import refusal

KEPT = "ledger.before.parquet"
"""Name of the copy, beside the ledger."""


def keep_ledger(ledger: Path) -> None:
    """Set a copy of the ledger aside, unless one is there already.

    Raises:
        DataError: It cannot be written.
    """
    kept = ledger.with_name(KEPT)
    if kept.exists() or not ledger.is_file():
        return
    partial = kept.with_suffix(f".{os.getpid()}.partial")
    try:
        shutil.copyfile(ledger, partial)
        partial.replace(kept)
    except OSError as error:
        raise DataError(f"{str(kept)!r} cannot be written: {refusal(error)}; free space") from error
    finally:
        partial.unlink(missing_ok=True)


def give_back_ledger(ledger: Path) -> None:
    """Let the ledger that was set aside stand again; without one, all stays as it is.

    A copy that cannot be read is none.
    """
    kept = ledger.with_name(KEPT)
    if not kept.is_file():
        return
    from arachne.data.manifest import read_manifest  # with pyarrow, which takes a while to import

    try:
        read_manifest(kept)
    except DataError:
        kept.unlink()
    else:
        kept.replace(ledger)


def accept_ledger(ledger: Path) -> None:
    """The run goes on with its ledger as it is now."""
    ledger.with_name(KEPT).unlink(missing_ok=True)
