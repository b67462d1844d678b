"""What the preparing benchmark counts, and what it decodes."""

import prepare
import pytest
import video_readers
from prepare import TINY, Made, Source, copies, made_videos, preparing_pace

from arachne.core.bucket import Bucket
from arachne.data.file_identity import content_of
from arachne.data.probe import probe


def made(process: int, at_s: float, cpu_s: float) -> Made:
    return Made(process=process, at_s=at_s, cpu_s=cpu_s, peak_rss_mb=1.0)


def test_the_pace_begins_when_every_process_has_made_a_clip():
    clips = [made(0, 1, 9.0), made(0, 2, 9.5), made(1, 3, 5.0), made(0, 4, 10.5), made(1, 5, 6.5)]
    pace = preparing_pace(clips)
    assert pace.clips_per_s == pytest.approx(2 / (5 - 3))
    assert pace.cpu_s_per_clip == pytest.approx((10.5 - 9.0 + 6.5 - 5.0) / 3)


def test_copies_are_the_same_video_of_other_bytes(tmp_path):
    (path,) = made_videos(tmp_path, TINY, 1)
    others = copies(path, tmp_path, 3)
    assert len({content_of(each) for each in (path, *others)}) == 4
    assert {probe(each) for each in (path, *others)} == {probe(path)}


def test_of_many_videos_no_two_are_the_same(tmp_path):
    source = Source(width=32, height=32, bucket=Bucket.parse("32x32x1"))
    paths = made_videos(tmp_path, source, 70)
    assert len({path.read_bytes() for path in paths}) == 70


def test_every_reader_decodes_all_frames_and_preparing_makes_all_clips(tmp_path):
    paths = made_videos(tmp_path, TINY, 3)
    absent = dict.fromkeys(video_readers.PACKAGES, "not asked for")
    found = video_readers.readers((48, 40), absent)
    assert set(found) == {"pyav_frames", "pyav", "pyav_same_filter"}
    assert [read(paths[0]) for read in found.values()] == [TINY.bucket.frames] * 3
    rows = prepare.rows_of(paths, prepare.TINY_BUCKETS)
    clips = prepare.prepared(tmp_path, rows, tmp_path / "cache", 1)
    assert len(clips) == 3
    assert clips[-1].peak_rss_mb >= clips[0].peak_rss_mb > 1
    assert clips[-1].cpu_s > clips[0].cpu_s
