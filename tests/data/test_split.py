from dataclasses import replace

import pytest

from arachne.core.bucket import Bucket
from arachne.core.clip import Clip, TimeSpan
from arachne.core.ledger import LedgerRow
from arachne.data.split import first_by_content, held_out


def row_of(number: int, **clip_changes) -> LedgerRow:
    return LedgerRow(
        clip=replace(Clip(path=f"{number}.mp4", caption="x"), **clip_changes),
        status="kept",
        arithmetic="",
        reason="",
        bucket=Bucket(width=32, height=32, frames=1),
        num_tokens=4,
        content=f"content {number}",
    )


ROWS = [row_of(number) for number in range(4000)]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_about_the_asked_share_is_held_out(share):
    found = sum(held_out(row, share) for row in ROWS) / len(ROWS)
    assert found == pytest.approx(share, abs=0.02 if 0.0 < share < 1.0 else 0.0)


def test_a_larger_share_only_adds_clips():
    small = {row.content for row in ROWS if held_out(row, 0.1)}
    large = {row.content for row in ROWS if held_out(row, 0.3)}
    assert small < large


def test_a_clip_stays_where_it_is_when_others_come_or_it_is_renamed():
    # The answer is of the row alone; its name and caption may change.
    for row in ROWS[:200]:
        renamed = replace(row, clip=Clip(path="moved/x.mp4", caption="another caption"))
        assert held_out(renamed, 0.5) == held_out(row, 0.5)


def test_all_spans_of_one_file_are_on_one_side():
    # They may overlap: frames of a held-out one would be trained in another.
    for number in range(50):
        spans = [TimeSpan(start_s=float(s), end_s=s + 1.5) for s in range(20)]
        rows = [row_of(number), *(row_of(number, span=span) for span in spans)]
        assert len({held_out(row, 0.5) for row in rows}) == 1


def test_a_few_clips_are_chosen_from_all_over_a_file_not_from_its_start():
    rows = [row_of(0, span=TimeSpan(start_s=float(s), end_s=s + 1.0)) for s in range(100)]
    chosen = [rows.index(row) for row in first_by_content(rows, 10)]
    assert len(chosen) == 10
    assert chosen == sorted(chosen)
    assert max(chosen) > 50
