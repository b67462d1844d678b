"""Lengths and sizes of public sets: the published quantiles, and what a user may ask for."""

from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arachne.core.errors import ConfigError
from arachne.data.length_distributions import (
    DISTRIBUTIONS,
    SizeShare,
    distribution_named,
    parsed_size_mix,
    size_at,
)

PUBLISHED_S = {
    "panda70m": {0.05: 2.27, 0.25: 3.40, 0.5: 5.44, 0.75: 12.06, 0.95: 48.0},
    "webvid10m": {0.05: 6, 0.25: 10, 0.5: 15, 0.75: 22, 0.95: 39},
    "opensora1.2-stage3": {0.431: 5.0, 0.703: 10.0, 0.922: 15.0},
}
"""Seconds by quantile, of the sets' own lists and figures."""

TOLERANCE = {"panda70m": 1e-9, "webvid10m": 0.07, "opensora1.2-stage3": 1e-9}
"""WebVid's list is in whole seconds, and a lognormal stands for it."""

PUBLISHED_MEAN_S = {"panda70m": (11.08, 0.04), "webvid10m": (18.0, 0.02)}


@pytest.mark.parametrize("name", PUBLISHED_S)
def test_quantiles_are_those_of_the_set(name: str):
    distribution = distribution_named(name)
    for share, seconds in PUBLISHED_S[name].items():
        assert distribution.length_s(share) == pytest.approx(seconds, rel=TOLERANCE[name])


@pytest.mark.parametrize("name", PUBLISHED_MEAN_S)
def test_the_mean_is_that_of_the_set(name: str):
    length_s = DISTRIBUTIONS[name].length_s
    num = 20_000
    mean_s = sum(length_s((index + 0.5) / num) for index in range(num)) / num
    published_s, tolerance = PUBLISHED_MEAN_S[name]
    assert mean_s == pytest.approx(published_s, rel=tolerance)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@given(shares=st.tuples(st.floats(2**-53, 1 - 2**-53), st.floats(2**-53, 1 - 2**-53)))
def test_more_clips_are_never_shorter_and_every_length_is_finite(name: str, shares):
    shorter_s, longer_s = map(DISTRIBUTIONS[name].length_s, sorted(shares))
    assert 0.0 < shorter_s <= longer_s * (1 + 1e-12) < inf


def test_open_soras_resolutions_have_their_published_shares():
    sizes = DISTRIBUTIONS["opensora1.2-stage3"].sizes
    drawn = [size_at(sizes, Random(seed).random()).height for seed in range(4000)]
    assert drawn.count(720) / len(drawn) == pytest.approx(0.711, abs=0.02)
    assert drawn.count(1080) / len(drawn) == pytest.approx(0.279, abs=0.02)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_every_set_says_where_its_figures_come_from(distribution):
    assert len(distribution.origin) > 40
    assert all(size.width > size.height for size in distribution.sizes)  # as the file promises


def test_a_size_mix_is_read_in_its_order_and_shares_need_not_sum_to_one():
    mix = parsed_size_mix(" 1280x720:3, 640x368:1 ,64x64")

    assert mix == (
        SizeShare(width=1280, height=720, weight=3.0),
        SizeShare(width=640, height=368, weight=1.0),
        SizeShare(width=64, height=64, weight=1.0),
    )
    assert [size_at(mix, share).width for share in (0.0, 0.59, 0.61, 0.79, 0.81, 1.0)] == [
        1280,
        1280,
        640,
        640,
        64,
        64,
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1280", "frame size '1280' is not WIDTHxHEIGHT:SHARE; write for example 1280x720:0.7"),
        ("", "frame size '' is not WIDTHxHEIGHT:SHARE"),
        ("64x64:1,,", "frame size '' is not WIDTHxHEIGHT:SHARE"),
        ("64x64:1.2.3", "frame size '64x64:1.2.3' is not WIDTHxHEIGHT:SHARE"),
        ("64x64:0", "frame size 64x64 with share 0: sides must be at least 1 and shares above 0"),
        ("0x64:1", "frame size 0x64 with share 1: sides must be at least 1 and shares above 0"),
        ("64x64:1e999", "frame size 64x64 with share inf: sides must"),
    ],
)
def test_a_mix_that_cannot_work_is_said(text: str, message: str):
    with pytest.raises(ConfigError, match=message):
        parsed_size_mix(text)


def test_an_unknown_set_gets_the_nearest_name():
    with pytest.raises(ConfigError, match=r"is called 'panda'; did you mean 'panda70m'\?"):
        distribution_named("panda")
