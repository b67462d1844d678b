from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arachne.core.bucket import Bucket
from arachne.core.clip import MediaFacts
from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.data.frame_size import (
    MAX_BLACK_SHARE,
    MAX_CROPPED_SHARE,
    FrameSize,
    NoFrameSize,
    frame_size,
    scaled_size,
)
from arachne.data.shapes import ShapeRules, Shaping, shape_of
from arachne.data.timeline import retimed_count

WAN = family_named("wan").geometry
LENGTHS = (1, 17, 33, 49, 61, 65, 81)


def _facts(num_frames: int, fps: float, width: int = 832, height: int = 480) -> MediaFacts:
    return MediaFacts(width=width, height=height, fps=fps, num_frames=num_frames, is_estimated=True)


def _shape(facts: MediaFacts, lengths: tuple[int, ...] = LENGTHS, res: int = 640) -> Shaping:
    return shape_of(facts, ShapeRules(fps=16.0, resolution=res, frame_buckets=lengths), WAN)


@pytest.mark.parametrize(
    ("num_frames", "fps", "count"),
    [(132, 25, 84), (101, 24000 / 1001, 67), (250, 25, 160), (120, 30000 / 1001, 64), (1, 60, 1)],
)
def test_retiming_counts_whole_frames(num_frames: int, fps: float, count: int) -> None:
    assert retimed_count(num_frames / fps, 16.0) == count


def test_the_arithmetic_is_shown_from_file_to_model() -> None:
    shaping = _shape(_facts(101, 24000 / 1001))
    assert shaping.arithmetic == "101f@23.976 → 67f@16 → 65"
    assert shaping.status == "trimmed"
    assert shaping.reason == "2 frames at the end are not used"
    assert shaping.bucket == Bucket(width=832, height=480, frames=65)


def test_a_clip_that_fills_its_length_is_kept_whole() -> None:
    shaping = _shape(_facts(65, 16.0))
    assert (shaping.status, shaping.reason) == ("kept", "")


def test_a_clip_one_frame_short_goes_to_the_next_length_and_says_so() -> None:
    shaping = _shape(_facts(64, 16.0))
    assert shaping.arithmetic == "64f@16 → 64f@16 → 61"
    assert (shaping.status, shaping.reason) == ("trimmed", "3 frames at the end are not used")


def test_a_short_video_is_a_still_where_stills_are_listed() -> None:
    shaping = _shape(_facts(12, 16.0))
    assert shaping.bucket is not None
    assert shaping.bucket.frames == 1
    assert shaping.status == "trimmed"
    assert shaping.reason == "used as a still, shorter than 17 frames; 11 frames are not used"


def test_a_short_video_is_rejected_with_the_nearest_length_otherwise() -> None:
    shaping = _shape(_facts(12, 25.0), (17, 33))
    assert shaping.bucket is None
    assert shaping.arithmetic == "12f@25 → 7f@16"
    assert shaping.reason == (
        "12 frames at 25 fps give 7 at 16 fps; the shortest length in data.frame_buckets needs "
        "17; nearest that fits: 5"
    )


def test_a_still_takes_one_frame_whatever_is_listed() -> None:
    shaping = _shape(_facts(1, 0.0), (17,))
    assert (shaping.status, shaping.arithmetic) == ("kept", "1f → 1")


def test_frames_that_are_repeated_are_told() -> None:
    shaping = _shape(_facts(40, 10.0))
    assert shaping.arithmetic == "40f@10 → 64f@16 → 61"
    assert "10 fps is below 16: frames are repeated" in shaping.reason


@pytest.mark.parametrize("lengths", [(16,), (24,), (48,), (0,), (-3,)])
def test_lengths_that_the_model_does_not_take_are_refused(lengths: tuple[int, ...]) -> None:
    rules = ShapeRules(fps=16.0, resolution=480, frame_buckets=lengths)
    with pytest.raises(ConfigError, match=r"takes 4k\+1 frames; use "):
        rules.check(WAN)


@pytest.mark.parametrize(
    ("family", "frames", "nearest"),
    [
        ("wan", 16, "13 or 17"),
        ("wan", 24, "21 or 25"),
        ("wan", 80, "77 or 81"),
        ("ltx", 16, "9 or 17"),
        ("ltx", 21, "17 or 25"),
        ("hunyuan_video", 128, "125 or 129"),
        ("wan", 0, "1"),
    ],
)
def test_each_family_refuses_its_own_illegal_lengths(
    family: str, frames: int, nearest: str
) -> None:
    rules = ShapeRules(fps=16.0, resolution=480, frame_buckets=(17, 25, frames))
    with pytest.raises(ConfigError, match=rf"holds {frames}, .*k\+1 frames; use {nearest}$"):
        rules.check(family_named(family).geometry)


@pytest.mark.parametrize("frames", [17, 25])
def test_lengths_that_look_odd_but_are_legal_pass(frames: int) -> None:
    rules = ShapeRules(fps=16.0, resolution=480, frame_buckets=(frames,))
    rules.check(WAN)
    rules.check(family_named("ltx").geometry)


def test_the_nearest_lengths_are_named() -> None:
    rules = ShapeRules(fps=16.0, resolution=480, frame_buckets=(1, 48))
    with pytest.raises(ConfigError, match=r"holds 48, .* use 45 or 49"):
        rules.check(WAN)


@pytest.mark.parametrize(
    ("size", "found"),
    [
        ((1280, 720), (640, 352)),
        ((720, 1280), (352, 640)),
        ((853, 481), (640, 352)),
        ((480, 480), (480, 480)),
        ((176, 144), (176, 144)),
        ((8192, 16), (8192, 16)),
        ((20, 20), (16, 16)),
    ],
)
def test_a_frame_keeps_its_aspect(size: tuple[int, int], found: tuple[int, int]) -> None:
    result = frame_size(*size, 480, (16, 16))
    assert isinstance(result, FrameSize)
    assert (result.width, result.height) == found


def test_a_frame_too_small_is_rejected_with_the_arithmetic() -> None:
    assert "width 1.0 is below 16" in _shape(_facts(1, 0.0, 1, 1)).reason
    thin = _shape(_facts(1, 0.0, 8192, 16), res=256)
    assert thin.status == "rejected"
    assert "5792.6x11.3; height 11.3 is below 16" in thin.reason


def test_a_frame_that_would_lose_too_much_is_rejected_with_the_arithmetic() -> None:
    shaping = _shape(_facts(1, 0.0, 31, 160), res=480)
    assert shaping.status == "rejected"
    assert "nearest size 16x160 would crop 48 %" in shaping.reason


@given(
    width=st.integers(1, 9000),
    height=st.integers(1, 9000),
    resolution=st.integers(16, 1500),
    multiple=st.sampled_from([(16, 16), (32, 32), (8, 16)]),
)
def test_a_size_is_legal_within_budget_and_never_larger_than_the_source(
    width: int, height: int, resolution: int, multiple: tuple[int, int]
) -> None:
    size = frame_size(width, height, resolution, multiple)
    if isinstance(size, NoFrameSize):
        assert size.reason
        return
    assert size.width % multiple[0] == 0
    assert size.height % multiple[1] == 0
    assert 0 < size.width <= width
    assert 0 < size.height <= height
    assert size.width * size.height <= resolution**2
    assert -1e-9 <= size.cropped_share <= MAX_CROPPED_SHARE


@given(num_frames=st.integers(1, 2000), fps=st.floats(1.0, 240.0))
def test_a_clip_gets_the_longest_length_that_it_fills(num_frames: int, fps: float) -> None:
    shaping = _shape(_facts(num_frames, fps))
    count = retimed_count(num_frames / fps, 16.0)
    assert shaping.bucket is not None
    assert shaping.bucket.frames == max(length for length in LENGTHS if length <= count)
    assert (shaping.status == "kept") == (shaping.bucket.frames == count)


@pytest.mark.parametrize(
    ("size", "found"),
    [
        ((1280, 720), (640, 352)),
        ((1000, 700), (640, 352)),  # nearer to 16:9 than to 1:1
        ((800, 700), (480, 480)),
        ((320, 176), (320, 176)),  # is not scaled up
    ],
)
def test_a_frame_goes_to_the_nearest_of_the_listed_aspects(size, found) -> None:
    result = frame_size(*size, 480, (16, 16), aspects=[16 / 9, 1.0])
    assert isinstance(result, FrameSize)
    assert (result.width, result.height) == found


def test_a_frame_far_from_every_listed_aspect_is_rejected_with_advice() -> None:
    result = frame_size(720, 1280, 480, (16, 16), aspects=[16 / 9, 1.0])
    assert isinstance(result, NoFrameSize)
    assert "would crop 44 % of it, more than 25 %; add a ratio nearer" in result.reason


def test_a_small_frame_is_scaled_up_only_if_that_is_asked_for() -> None:
    facts = _facts(1, 0.0, 176, 144)
    assert _shape(facts, res=480).bucket == Bucket(width=176, height=144, frames=1)
    rules = ShapeRules(fps=16.0, resolution=480, frame_buckets=(1,), upscale=True)
    shaping = shape_of(facts, rules, WAN)
    assert shaping.bucket == Bucket(width=528, height=432, frames=1)
    assert "176x144 → 528x432" in shaping.reason


@pytest.mark.parametrize("text", ["16x9", "1６:9", "16:٩", "0:1", "16:9:1"])
def test_an_aspect_that_is_none_is_refused(text) -> None:
    with pytest.raises(ConfigError, match=f"aspects holds {text!r}; write width:height"):
        ShapeRules(fps=16.0, resolution=480, frame_buckets=(1,), aspects=(text,))


@given(
    width=st.integers(16, 4000),
    height=st.integers(16, 4000),
    aspects=st.lists(st.floats(0.3, 3.0), max_size=3),
    upscale=st.booleans(),
)
def test_with_aspects_and_scaling_up_a_size_is_still_legal(width, height, aspects, upscale) -> None:
    size = frame_size(width, height, 480, (16, 16), aspects=aspects, upscale=upscale)
    if isinstance(size, NoFrameSize):
        return
    assert size.width % 16 == size.height % 16 == 0
    assert size.width * size.height <= 480**2
    assert upscale or (size.width <= width and size.height <= height)
    assert size.cropped_share <= MAX_CROPPED_SHARE


@pytest.mark.parametrize(
    ("size", "aspects", "found"),
    [
        ((853, 481), [], (624, 352)),  # the frame is as large in 640x352, between black
        ((31, 160), [], (32, 160)),  # a column of black instead of half of the frame
        ((1920, 1080), [1.0], (480, 480)),
        ((1080, 1920), [16 / 9], (640, 352)),
        ((320, 180), [1.0], (320, 320)),  # is not scaled up
        ((23, 23), [], (16, 16)),
    ],
)
def test_a_letterboxed_frame_is_whole_within_its_size(size, aspects, found) -> None:
    result = frame_size(*size, 480, (16, 16), aspects=aspects, fit="letterbox")
    assert isinstance(result, FrameSize)
    assert (result.width, result.height) == found
    assert result.cropped_share == 0.0


def test_a_frame_that_would_be_nearly_all_black_is_rejected_with_advice() -> None:
    result = frame_size(4000, 400, 480, (16, 16), aspects=[1.0], fit="letterbox")
    assert isinstance(result, NoFrameSize)
    assert "would be 90 % black, more than 75 %; add a ratio nearer" in result.reason


@given(
    width=st.integers(16, 4000),
    height=st.integers(16, 4000),
    aspects=st.lists(st.floats(0.3, 3.0), max_size=3),
    upscale=st.booleans(),
)
def test_letterboxed_sizes_are_legal_and_keep_the_whole_frame_in_its_aspect(
    width, height, aspects, upscale
) -> None:
    size = frame_size(
        width, height, 480, (16, 16), aspects=aspects, upscale=upscale, fit="letterbox"
    )
    if isinstance(size, NoFrameSize):
        return
    assert size.width % 16 == size.height % 16 == 0
    assert size.width * size.height <= 480**2
    shown = scaled_size(width, height, (size.width, size.height), "letterbox")
    assert shown[0] <= size.width
    assert shown[1] <= size.height
    assert size.width in shown[:1] or size.height in shown[1:]
    assert abs(shown[0] * height - shown[1] * width) <= 0.5 * (width + height)
    assert upscale or (shown[0] <= width and shown[1] <= height)
    assert size.cropped_share == 0.0
    assert size.black_share <= MAX_BLACK_SHARE
    black = 1 - shown[0] * shown[1] / (size.width * size.height)
    assert size.black_share == pytest.approx(black, abs=0.6 / min(shown))


def test_a_letterboxed_clip_says_how_much_of_it_is_black() -> None:
    rules = ShapeRules(
        fps=16.0, resolution=480, frame_buckets=(1,), aspects=("1:1",), fit="letterbox"
    )
    shaping = shape_of(_facts(1, 0.0, 1920, 1080), rules, WAN)
    assert shaping.bucket == Bucket(width=480, height=480, frames=1)
    assert shaping.reason == "1920x1080 → 480x480, 43.8 % black"


@pytest.mark.parametrize(
    ("size", "found"),
    [
        ((1280, 720), (1280, 720)),  # exactly 960 x 960 pixels
        ((1279, 719), (640, 352)),
        ((832, 480), (624, 368)),
        ((256, 256), (256, 256)),
        ((176, 144), (176, 144)),  # reaches none, and is not scaled up
    ],
)
def test_a_clip_takes_the_largest_area_that_it_reaches(size, found) -> None:
    rules = ShapeRules(fps=16.0, resolution=(480, 960, 256), frame_buckets=(1,))
    shaping = shape_of(_facts(1, 0.0, *size), rules, WAN)
    assert shaping.bucket == Bucket(width=found[0], height=found[1], frames=1)


def test_of_several_areas_a_small_clip_is_scaled_up_to_the_least() -> None:
    rules = ShapeRules(fps=16.0, resolution=(960, 480), frame_buckets=(1,), upscale=True)
    shaping = shape_of(_facts(1, 0.0, 176, 144), rules, WAN)
    assert shaping.bucket == Bucket(width=528, height=432, frames=1)


def test_what_counts_for_an_area_is_what_of_the_frame_trains() -> None:
    facts = _facts(1, 0.0, 1280, 720)
    rules = ShapeRules(fps=16.0, resolution=(480, 960), frame_buckets=(1,), aspects=("1:1",))
    assert rules.resolution_of(facts) == 480  # of 720 x 720 pixels
    assert replace(rules, fit="letterbox").resolution_of(facts) == 960  # set in 1280 x 1280


def test_no_area_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data.resolution is empty; name at least one"):
        ShapeRules(fps=16.0, resolution=(), frame_buckets=(1,))


@pytest.mark.parametrize(("family", "least"), [("ltx", 32), ("wan", 16)])
def test_a_resolution_below_the_smallest_frame_is_refused_with_the_least(family, least) -> None:
    geometry = family_named(family).geometry
    ShapeRules(fps=16.0, resolution=least, frame_buckets=(1,)).check(geometry)
    words = rf"of {least - 1} \(data.resolution\) is below the model's smallest .* least {least}$"
    with pytest.raises(ConfigError, match=words):
        ShapeRules(fps=16.0, resolution=(256, least - 1), frame_buckets=(1,)).check(geometry)
