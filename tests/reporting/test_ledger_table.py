from rich.console import Console

from arachne.core.bucket import Bucket
from arachne.core.clip import Clip
from arachne.core.ledger import Ledger, LedgerRow, Status
from arachne.reporting.ledger_table import (
    bucket_table,
    ledger_summary,
    ledger_table,
    shown_rows,
)


def _row(path: str, status: Status, frames: int = 17, reason: str = "") -> LedgerRow:
    is_rejected = status == "rejected"
    return LedgerRow(
        clip=Clip(path=path, caption="x"),
        status=status,
        arithmetic=f"20f@16 → 20f@16 → {frames}",
        reason=reason,
        bucket=None if is_rejected else Bucket(width=64, height=48, frames=frames),
        num_tokens=0 if is_rejected else 12 * frames,
        content="",
    )


def _printed(table: object) -> str:
    console = Console(width=140, force_terminal=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_a_row_shows_what_became_of_its_clip() -> None:
    printed = _printed(ledger_table(Ledger(rows=(_row("a.mp4", "trimmed", reason="3 cut"),))))
    for text in ("a.mp4", "trimmed", "20f@16 → 20f@16 → 17", "64x48x17", "204", "3 cut"):
        assert text in printed


def test_names_from_a_dataset_are_no_markup_and_no_terminal_commands() -> None:
    rows = (_row("[bold]a[/bold]\x1b[2J.mp4", "rejected", reason="[/] \\[x]"),)
    printed = _printed(ledger_table(Ledger(rows=rows)))
    assert "[bold]a[/bold] [2J.mp4" in printed
    assert "[/] \\[x]" in printed
    assert "\x1b" not in printed


def test_a_long_ledger_shows_its_rejected_rows_first_in_order() -> None:
    rows = (_row("a", "kept"), _row("b", "rejected"), _row("c", "kept"), _row("d", "trimmed"))
    ledger = Ledger(rows=rows)
    assert [row.clip.path for row in shown_rows(ledger, 2)] == ["b", "d"]
    assert [row.clip.path for row in shown_rows(ledger, 3)] == ["a", "b", "d"]
    assert "2 rows more" in _printed(ledger_table(ledger, 2))


def test_buckets_are_counted_largest_first() -> None:
    ledger = Ledger(
        rows=(_row("a", "kept"), _row("b", "kept", 33), _row("c", "trimmed"), _row("d", "rejected"))
    )
    lines = [line.split() for line in _printed(bucket_table(ledger)).splitlines() if "x48x" in line]
    assert [[line[1], line[3], line[5]] for line in lines] == [
        ["64x48x33", "1", "396"],
        ["64x48x17", "2", "204"],
    ]


def test_the_summary_counts_all_rows() -> None:
    ledger = Ledger(rows=(_row("a", "kept"), _row("b", "rejected")))
    assert ledger_summary(ledger) == "2 clips: 1 kept, 0 trimmed, 1 rejected"
