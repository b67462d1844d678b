"""Pieces of long clips: which ones a mode takes, and where in the file they lie."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arachne.core.clip import MediaFacts
from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.data.clip_arithmetic import clip_arithmetic, clips_named
from arachne.data.decode import decode_clip
from arachne.data.extraction import Extraction, num_covered, piece_span
from arachne.data.inspect import inspect_dataset
from arachne.data.prepare import keys_of
from arachne.data.shapes import ShapeRules, shape_of
from arachne.data.split import held_out
from arachne.data.timeline import Timeline, cut, facts_of, retimed_count
from tests.data.media import Look, frame_numbers, write_ramp

WAN = family_named("wan").geometry
MODES = st.sampled_from(["head", "middle", "uniform", "chunk", "slide", "full"])


def rules_of(**extraction) -> ShapeRules:
    return ShapeRules(
        fps=16.0, resolution=64, frame_buckets=(1, 17), extraction=Extraction(**extraction)
    )


@pytest.mark.parametrize(
    ("extraction", "starts"),
    [
        ({"mode": "head"}, (0,)),
        ({"mode": "middle"}, (16,)),
        ({"mode": "uniform"}, (0, 33)),
        ({"mode": "uniform", "frame_sample": 4}, (0, 11, 22, 33)),
        ({"mode": "uniform", "frame_sample": 1}, (0,)),
        ({"mode": "uniform", "frame_sample": 10**18}, tuple(range(34))),
        ({"mode": "chunk"}, (0, 17)),
        ({"mode": "slide"}, (0, 16, 32)),
        ({"mode": "slide", "frame_stride": 11}, (0, 11, 22, 33)),
        ({"mode": "slide", "frame_stride": 34}, (0,)),
        ({"mode": "full"}, (0,)),
    ],
)
def test_a_mode_takes_these_pieces_of_17_from_50_frames(extraction, starts):
    assert Extraction(**extraction).starts(50, 17) == starts


@given(mode=MODES, count=st.integers(1, 300), share=st.floats(0.0, 1.0))
def test_pieces_lie_within_the_clip_and_no_piece_comes_twice(mode, count, share):
    frames = 1 + int(share * (count - 1))
    starts = Extraction(mode=mode).starts(count, frames)
    assert starts == tuple(sorted(set(starts)))
    assert starts[0] >= 0
    assert starts[-1] + frames <= count
    frames_in_some_piece = {start + k for start in starts for k in range(frames)}
    assert num_covered(starts, frames) == len(frames_in_some_piece)


@pytest.mark.parametrize(
    ("count", "note"),
    [
        (18, "; 2 places to begin at, fewer than data.frame_sample = 5"),
        (17, "1 place to begin at, fewer than data.frame_sample = 5"),
        (21, "5 pieces of 17 frames"),
    ],
)
def test_fewer_pieces_than_were_asked_for_are_said(count, note):
    facts = MediaFacts(width=64, height=64, fps=16.0, num_frames=count, is_estimated=True)
    shaping = shape_of(facts, rules_of(mode="uniform", frame_sample=5), WAN)
    assert shaping.reason.endswith(note)
    still = MediaFacts(width=64, height=64, fps=0.0, num_frames=1, is_estimated=False)
    assert shape_of(still, rules_of(mode="uniform", frame_sample=5), WAN).reason == ""


def test_a_video_that_fills_only_a_still_gives_one_and_not_one_for_each_frame():
    assert Extraction(mode="chunk").starts(16, 1) == (0,)
    assert Extraction(mode="slide", frame_stride=1).starts(16, 1) == (0,)


@given(
    steps_ms=st.lists(st.integers(2, 400), min_size=1, max_size=80),
    mode=MODES,
    fps=st.sampled_from([8.0, 16.0, 24.0, 30.0]),
    data=st.data(),
)
def test_every_piece_holds_all_frames_that_its_length_needs(steps_ms, mode, fps, data):
    times_s = np.concatenate([[0.0], np.cumsum(steps_ms)[:-1]]) / 1000.0
    timeline = Timeline(
        width=64,
        height=64,
        pts=np.arange(len(times_s)),
        key_pts=np.zeros(1, dtype=np.int64),
        times_s=times_s,
        end_s=sum(steps_ms) / 1000.0,
    )
    whole = cut(timeline, None)
    count = retimed_count(whole.end_s, fps)
    frames = data.draw(st.integers(1, count))
    for start in Extraction(mode=mode).starts(count, frames):
        span = piece_span(timeline, whole, start, frames, fps)
        part = cut(timeline, span)
        assert retimed_count(part.end_s - part.start_s, fps) >= frames
        shown_s = start / fps  # the piece begins with the frame that is shown then
        assert part.start_s <= shown_s + 1e-3
        assert part.first + 1 == len(times_s) or shown_s + 1e-3 < times_s[part.first + 1]
        assert facts_of(timeline, span).num_frames >= 1


def test_pieces_that_begin_in_one_held_frame_are_one_piece(tmp_path: Path) -> None:
    write_ramp(tmp_path / "a.mp4", 20, Look(fps=Fraction(2)))
    ledger = inspect_dataset(tmp_path, rules_of(mode="slide", frame_stride=4), WAN, "empty", 1)
    names = [row.clip.name for row in ledger.rows]
    assert len(set(names)) == len(names) == 18, "160 frames; every second start is in a held frame"
    assert all("18 of them begin in the same held frame" in row.reason for row in ledger.rows)
    assert ledger.rows[1].arithmetic.endswith("(3 of 36, from 8)")
    (named, *_) = clips_named([ledger.rows[0].clip.listed], "a.mp4")
    steps = clip_arithmetic(tmp_path, ledger.rows, rules_of(mode="slide", frame_stride=4), WAN)
    assert named.piece is None
    assert [name for name, _ in steps if name.startswith("piece")][:2] == [
        "piece 1 of 36",
        "piece 3 of 36",
    ]


@pytest.mark.parametrize(
    ("extraction", "first_frames"),
    [
        ({"mode": "chunk"}, [0, 17]),
        ({"mode": "middle"}, [16]),
        ({"mode": "uniform", "frame_sample": 3}, [0, 16, 33]),
    ],
)
def test_a_piece_is_decoded_from_where_it_begins(tmp_path: Path, extraction, first_frames):
    write_ramp(tmp_path / "a.mp4", 50)
    ledger = inspect_dataset(tmp_path, rules_of(**extraction), WAN, "empty", 1)
    assert len(ledger.rows) == len(first_frames)
    for row, first in zip(ledger.rows, first_frames, strict=True):
        pixels = decode_clip(tmp_path / row.clip.path, row.clip.part, row.bucket, 16.0)
        shift = np.array(frame_numbers(pixels)) - np.arange(first, first + 17)
        assert np.abs(shift).mean() < 0.5  # the codec rounds greys; one frame more would be 1


def test_pieces_have_names_rows_and_latents_of_their_own_but_one_side_of_the_split(tmp_path: Path):
    write_ramp(tmp_path / "a.mp4", 50)
    write_ramp(tmp_path / "b.mp4", 17)
    rows = inspect_dataset(tmp_path, rules_of(mode="chunk"), WAN, "empty", 1).rows
    assert [row.clip.name for row in rows] == ["a.mp4@0.00-1.06s", "a.mp4@1.06-2.12s", "b.mp4"]
    assert [row.status for row in rows] == ["trimmed", "trimmed", "kept"]
    assert rows[1].arithmetic == "50f@16 → 50f@16 → 17 (2 of 2, from 17)"
    assert rows[1].reason.startswith("2 pieces of 17 frames; 16 frames are not used")
    assert len({keys_of(row, 16.0, "video", "text")[0] for row in rows}) == 3
    for share in np.linspace(0.0, 1.0, 64):
        assert held_out(rows[0], share) == held_out(rows[1], share)


def test_full_takes_a_clip_whole_at_the_nearest_legal_length(tmp_path: Path):
    write_ramp(tmp_path / "a.mp4", 50)
    (row,) = inspect_dataset(tmp_path, rules_of(mode="full"), WAN, "empty", 1).rows
    assert (row.clip.name, row.bucket.frames) == ("a.mp4", 49)
    capped = rules_of(mode="full", max_frames=21)
    (row,) = inspect_dataset(tmp_path, capped, WAN, "empty", 1).rows
    assert row.bucket.frames == 21


def test_numbers_that_a_mode_does_not_read_are_refused():
    with pytest.raises(ConfigError, match=r"frame_stride does nothing in mode 'chunk'"):
        Extraction(mode="chunk", frame_stride=4)
    with pytest.raises(ConfigError, match=r"data\.frame_sample is 0; it must be at least 1"):
        Extraction(mode="uniform", frame_sample=0)


def test_a_longest_length_that_the_model_does_not_take_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"max_frames is 128, .* 4k\+1 frames; use 125 or 129"):
        rules_of(mode="full", max_frames=128).check(WAN)
