"""The ledger: one row per input clip."""

import pytest

from arachne.core.bucket import Bucket
from arachne.core.clip import Clip, TimeSpan
from arachne.core.errors import DataError
from arachne.core.ledger import Ledger, LedgerRow


def made_row(status: str, bucket: Bucket | None) -> LedgerRow:
    return LedgerRow(
        clip=Clip(path=f"{status}.mp4", caption=""),
        status=status,
        arithmetic="",
        reason="",
        bucket=bucket,
        num_tokens=0,
        content="",
    )


BUCKET = Bucket(width=16, height=16, frames=1)
LEDGER = Ledger(
    rows=(
        made_row("kept", BUCKET),
        made_row("rejected", None),
        made_row("trimmed", BUCKET),
        made_row("kept", BUCKET),
    )
)


def test_counts_name_every_status_and_add_up():
    assert LEDGER.counts == {"kept": 2, "trimmed": 1, "rejected": 1}
    assert Ledger(rows=()).counts == {"kept": 0, "trimmed": 0, "rejected": 0}
    assert sum(LEDGER.counts.values()) == len(LEDGER.rows)


def test_what_is_not_rejected_trains_in_the_datasets_order():
    assert [row.status for row in LEDGER.usable] == ["kept", "trimmed", "kept"]


@pytest.mark.parametrize(("status", "bucket"), [("kept", None), ("rejected", BUCKET)])
def test_exactly_rejected_clips_have_no_shape(status, bucket):
    with pytest.raises(AssertionError):
        made_row(status, bucket)


def test_a_clip_is_named_by_its_file_and_its_span():
    span = TimeSpan(start_s=1.0, end_s=3.5)
    assert Clip(path="a/b.mp4", caption="", span=span).name == "a/b.mp4@1.00-3.50s"
    assert Clip(path="a/b.mp4", caption="").name == "a/b.mp4"


@pytest.mark.parametrize(
    ("start_s", "end_s"),
    [(2.0, 1.0), (1.0, 1.0), (-1.0, 1.0), (0.0, float("inf")), (float("nan"), 1.0)],
)
def test_a_span_that_cannot_be_is_refused(start_s, end_s):
    with pytest.raises(DataError, match="must start at 0 s or later and end after its start"):
        TimeSpan(start_s=start_s, end_s=end_s)
