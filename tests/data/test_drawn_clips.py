"""Clips that are drawn instead of read: the same ledger as real ones would have."""

from collections import Counter

import pytest

from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.data.drawn_clips import drawn_ledger
from arachne.data.length_distributions import DISTRIBUTIONS, parsed_size_mix
from arachne.data.shapes import ShapeRules

WAN = family_named("wan").geometry
RULES = ShapeRules(fps=16.0, resolution=480, frame_buckets=(1, 17, 33, 49, 65, 81))


def drawn(name: str = "panda70m", rules: ShapeRules = RULES, **options):
    return drawn_ledger(DISTRIBUTIONS[name], rules, WAN, **{"num_clips": 500, "seed": 3} | options)


def test_the_same_seed_gives_the_same_clips_and_more_of_them_begin_alike():
    ledger = drawn()

    assert drawn() == ledger
    assert drawn(num_clips=20).rows == ledger.rows[:20]
    assert drawn(seed=4) != ledger


def test_every_clip_takes_the_longest_length_that_its_seconds_fill():
    for row in drawn().usable:
        assert row.clip.span is not None
        assert row.bucket is not None
        frames = int(row.clip.span.end_s * RULES.fps)
        assert row.bucket.frames == max(n for n in RULES.frame_buckets if n <= frames)
        assert row.num_tokens == WAN.num_tokens(row.bucket)
        assert row.clip.name.startswith("panda70m/00")


@pytest.mark.parametrize(("name", "share"), [("panda70m", 0.49), ("webvid10m", 0.98)])
def test_the_share_of_clips_at_the_cap_follows_from_the_lengths(name: str, share: float):
    """89 frames at 16 fps are 5.6 s: half of Panda's clips are longer, nearly all of WebVid's."""
    rules = ShapeRules(fps=16.0, resolution=480, frame_buckets=tuple(range(1, 90, 4)))
    ledger = drawn(name, rules, num_clips=4000)
    capped = sum(row.bucket is not None and row.bucket.frames == 89 for row in ledger.rows)
    assert capped / 4000 == pytest.approx(share, abs=0.03)


def test_named_sizes_take_the_place_of_the_sets_and_keep_their_shares():
    rules = ShapeRules(fps=16.0, resolution=960, frame_buckets=(1, 17))
    ledger = drawn(rules=rules, sizes=parsed_size_mix("1280x720:0.7,368x640:0.3"), num_clips=8000)

    sizes = Counter((row.bucket.width, row.bucket.height) for row in ledger.rows if row.bucket)
    assert set(sizes) == {(1280, 720), (368, 640)}
    assert sizes[1280, 720] / 8000 == pytest.approx(0.7, abs=0.02)


def test_clips_below_the_shortest_length_are_rejected_like_real_ones():
    rules = ShapeRules(fps=16.0, resolution=480, frame_buckets=(81,))
    ledger = drawn(rules=rules)

    assert 100 < ledger.counts["rejected"] < 300
    reasons = {row.reason for row in ledger.rows if row.status == "rejected"}
    assert all("the shortest length in data.frame_buckets needs 81" in text for text in reasons)


def test_a_length_that_the_model_does_not_take_is_refused():
    rules = ShapeRules(fps=16.0, resolution=480, frame_buckets=(1, 80))
    with pytest.raises(ConfigError, match="holds 80, but the model takes 4k"):
        drawn(rules=rules)
