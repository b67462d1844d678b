"""The ledger as people read it: a row per clip, a row per bucket, and one line that sums up."""

from collections import Counter
from collections.abc import Sequence

from rich.table import Table

from arachne.core.ledger import Ledger, LedgerRow
from arachne.core.units import count_text
from arachne.reporting.bucket_shares import BucketShare
from arachne.reporting.tables import share_text

_STYLES = {"kept": "green", "trimmed": "yellow", "rejected": "red"}


def ledger_table(ledger: Ledger, max_rows: int = 200) -> Table:
    """One row per clip; a ledger that is longer than `max_rows` shows its rejected rows first.

    The caption says how many rows are not shown.
    """
    table = Table(caption_justify="left")
    for name in ("clip", "status", "frames", "bucket", "tokens", "reason"):
        table.add_column(name, justify="right" if name == "tokens" else "left", overflow="fold")
    shown = shown_rows(ledger, max_rows)
    for row in shown:
        table.add_row(
            _plain(row.clip.name),
            f"[{_STYLES[row.status]}]{row.status}[/]",
            _plain(row.arithmetic),
            str(row.bucket) if row.bucket else "",
            f"{row.num_tokens:,}" if row.bucket else "",
            _plain(row.reason),
        )
    if len(shown) < len(ledger.rows):
        table.caption = f"{count_text(len(ledger.rows) - len(shown), 'row')} more; --json has all"
    return table


def shown_rows(ledger: Ledger, max_rows: int) -> tuple[LedgerRow, ...]:
    """The rows that a table of at most `max_rows` shows, in the dataset's order."""
    if len(ledger.rows) <= max_rows:
        return ledger.rows
    importance = {"rejected": 0, "trimmed": 1, "kept": 2}
    ranked = sorted(range(len(ledger.rows)), key=lambda i: (importance[ledger.rows[i].status], i))
    return tuple(ledger.rows[index] for index in sorted(ranked[:max_rows]))


def bucket_table(ledger: Ledger) -> Table:
    """How many clips train in each bucket, the largest bucket first."""
    table = Table()
    for name in ("bucket", "clips", "tokens per clip"):
        table.add_column(name, justify="left" if name == "bucket" else "right")
    clips = Counter((row.num_tokens, row.bucket) for row in ledger.usable if row.bucket)
    for (num_tokens, bucket), count in sorted(clips.items(), reverse=True):
        table.add_row(str(bucket), f"{count:,}", f"{num_tokens:,}")
    return table


def cost_table(shares: Sequence[BucketShare], model: str) -> Table:
    """What each bucket costs, as predicted for `model`."""
    table = Table(
        caption=f"FLOPs: training {model}, forward and backward; encoders not counted",
        caption_justify="left",
    )
    for name in ("bucket", "clips", "tokens per clip", "tokens", "training FLOPs"):
        table.add_column(name, justify="left" if name == "bucket" else "right")
    for share in shares:
        table.add_row(
            str(share.bucket),
            f"{share.num_clips:,}",
            f"{share.num_tokens:,}",
            share_text(share.token_share),
            share_text(share.flops_share),
        )
    return table


def steps_table(name: str, steps: Sequence[tuple[str, str]]) -> Table:
    """One clip's arithmetic, a row per step."""
    table = Table(title=_plain(name), title_justify="left", show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for step, text in steps:
        table.add_row(step, _plain(text))
    return table


def ledger_summary(ledger: Ledger) -> str:
    """`4 clips: 1 kept, 2 trimmed, 1 rejected`."""
    counts = ", ".join(f"{count:,} {status}" for status, count in ledger.counts.items())
    return f"{count_text(len(ledger.rows), 'clip')}: {counts}"


def _plain(text: str) -> str:
    """Text from a dataset as one line, in which rich finds no markup and a terminal no escapes."""
    visible = "".join(char if char.isprintable() else " " for char in text)
    return visible.replace("\\", "\\\\").replace("[", "\\[")
