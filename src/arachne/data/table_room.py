"""Whether a table has room in memory: a small Parquet or Arrow file may hold billions of rows."""

import os
from collections.abc import Sequence
from typing import Any

from arachne.core.errors import DataError
from arachne.core.units import bytes_text

_ROW_BYTES = 300
"""*Assumption*: least that a row of values takes in Python, whatever they are."""


def check_room(metadata: Any, columns: Sequence[str], name: str) -> None:
    """Refuse to read columns, by their names or their leaves', that this machine could not hold.

    Of some damaged footers pyarrow ends the process that asks about columns: look at a footer first
    (`check_footer`), or name none; then rows alone count.

    Raises:
        DataError: Rows and uncompressed values are more than the machine's memory.
    """
    num_bytes = metadata.num_rows * _ROW_BYTES
    for group in range(metadata.num_row_groups if columns else 0):
        rows = metadata.row_group(group)
        leaves = (rows.column(index) for index in range(rows.num_columns))
        num_bytes += sum(
            leaf.total_uncompressed_size
            for leaf in leaves
            if any(f"{leaf.path_in_schema}.".startswith(f"{column}.") for column in columns)
        )
    _check(num_bytes, metadata.num_rows, name)


def check_row_room(num_rows: int, name: str) -> None:
    """Refuse to make rows of values that this machine could not hold; raises as `check_room`."""
    _check(num_rows * _ROW_BYTES, num_rows, name)


def check_text_room(num_bytes: int, name: str) -> None:
    """Refuse to read a text whole that this machine could not hold.

    Raises:
        DataError: It is larger than the machine's memory.
    """
    if num_bytes > _memory_bytes():
        raise DataError(
            f"{name} has {bytes_text(num_bytes)}, which have to fit in memory; this machine has "
            f"{bytes_text(_memory_bytes())}: split it"
        )


def _check(num_bytes: int, num_rows: int, name: str) -> None:
    if num_bytes > _memory_bytes():
        raise DataError(
            f"{name} has {num_rows:,} rows, which take at least {bytes_text(num_bytes)} in memory; "
            f"this machine has {bytes_text(_memory_bytes())}: split the table"
        )


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
