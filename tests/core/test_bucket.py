"""Buckets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arachne.core.bucket import Bucket
from arachne.core.errors import ConfigError

sides = st.integers(1, 10_000)
buckets = st.builds(Bucket, width=sides, height=sides, frames=sides)


@given(bucket=buckets)
def test_what_is_printed_is_read_back(bucket):
    assert Bucket.parse(str(bucket)) == bucket
    assert Bucket.parse(f"  {bucket}\n") == bucket


def test_a_bucket_is_printed_width_height_frames():
    bucket = Bucket(width=832, height=480, frames=81)
    assert str(bucket) == "832x480x81"
    assert bucket.num_pixels == 832 * 480 * 81


@pytest.mark.parametrize(
    "text",
    [
        "",
        "832x480",
        "832x480x81x2",
        "832×480×81",
        "８３２x480x81",
        "832x480x٨١",
        "-1x2x3",
        "8.5x2x3",
        "axbxc",
        "1 x2x3",
        "1234567890x2x3",
        "9" * 5000 + "x2x3",
    ],
)
def test_another_form_is_refused_with_an_example(text):
    with pytest.raises(ConfigError) as caught:
        Bucket.parse(text)
    assert str(caught.value) == (
        f"bucket {text!r} is not WIDTHxHEIGHTxFRAMES; write for example 832x480x81"
    )


@pytest.mark.parametrize("text", ["0x480x81", "832x0x81", "832x480x0"])
def test_no_side_can_be_empty(text):
    with pytest.raises(ConfigError, match=f"bucket {text}: width, height and frames must each be"):
        Bucket.parse(text)
