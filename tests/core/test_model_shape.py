"""How pixels become tokens, and which shapes a family takes."""

from dataclasses import replace
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arachne.core.bucket import Bucket
from arachne.core.errors import ConfigError
from arachne.core.families import FAMILIES, family_named
from arachne.core.model_shape import Geometry

WAN = FAMILIES["wan"]

geometries = st.builds(
    Geometry,
    temporal_compression=st.sampled_from([1, 4, 6, 8]),
    spatial_compression=st.sampled_from([8, 16, 32]),
    patch=st.sampled_from([(1, 1, 1), (1, 2, 2), (1, 2, 4)]),
)


@given(geometry=geometries, data=st.data())
def test_tokens_are_what_the_compressions_leave(geometry, data):
    counts = [data.draw(st.integers(1, 40), label=name) for name in ("w", "h", "f")]
    width_multiple, height_multiple = geometry.side_multiple
    bucket = Bucket(
        width=counts[0] * width_multiple,
        height=counts[1] * height_multiple,
        frames=(counts[2] - 1) * geometry.frame_step + 1,
    )
    assert geometry.token_grid(bucket) == (counts[2], counts[1], counts[0])
    assert geometry.num_tokens(bucket) == prod(counts)


@given(geometry=geometries, num_frames=st.integers(-3, 1000))
def test_the_longest_legal_length_is_legal_and_the_next_one_is_too_long(geometry, num_frames):
    legal = geometry.legal_frames_up_to(num_frames)
    assert (legal - 1) % geometry.frame_step == 0
    assert 1 <= legal <= max(num_frames, 1) < legal + geometry.frame_step


@given(geometry=geometries, width=st.integers(1, 300), frames=st.integers(1, 100))
def test_a_bucket_is_accepted_exactly_when_nothing_would_be_cropped(geometry, width, frames):
    bucket = Bucket(width=width, height=geometry.side_multiple[1], frames=frames)
    is_legal = width % geometry.side_multiple[0] == 0 and (frames - 1) % geometry.frame_step == 0
    if is_legal:
        geometry.check(bucket)
    else:
        with pytest.raises(ConfigError):
            geometry.check(bucket)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("832x480x80", "bucket 832x480x80: 80 frames are not 4k+1; use 77 or 81"),
        ("830x480x81", "bucket 830x480x81: width 830 is not a multiple of 16; use 816 or 832"),
        ("832x488x81", "bucket 832x488x81: height 488 is not a multiple of 16; use 480 or 496"),
        ("8x480x81", "bucket 8x480x81: width 8 is not a multiple of 16; use 16"),
    ],
)
def test_an_illegal_bucket_is_refused_with_the_nearest_legal_values(text, message):
    with pytest.raises(ConfigError) as caught:
        WAN.geometry.check(Bucket.parse(text))
    assert str(caught.value) == message


def test_wan_turns_a_480p_clip_of_5_seconds_into_32760_tokens():
    """21 latent frames of 60 × 104 latents in patches of 2 × 2, as in Wan2.1's paper."""
    bucket = Bucket.parse("832x480x81")
    assert WAN.geometry.latent_grid(bucket) == (21, 60, 104)
    assert WAN.geometry.num_tokens(bucket) == 21 * 30 * 52 == 32_760
    assert WAN.geometry.num_tokens(Bucket.parse("1280x720x81")) == 75_600
    assert WAN.geometry.num_tokens(Bucket.parse("1280x720x1")) == 3_600


@pytest.mark.parametrize(
    ("preset", "hidden_size", "num_parameters"),
    [("wan-1.3b", 1536, 1_418_996_800), ("wan-14b", 5120, 14_288_491_584)],
)
def test_presets_have_the_published_sizes(preset, hidden_size, num_parameters):
    shape = WAN.presets[preset]
    assert shape.hidden_size == hidden_size
    assert WAN.num_parameters(shape) == num_parameters


@pytest.mark.parametrize("name", ["num_layers", "num_heads", "head_size", "ffn_size", "freq_size"])
def test_no_size_of_a_model_can_be_zero(name):
    with pytest.raises(ConfigError) as caught:
        replace(WAN.presets["wan-1.3b"], **{name: 0})
    assert str(caught.value) == f"model.{name} is 0; it must be at least 1"


def test_an_unknown_family_is_refused_with_those_that_are_known():
    with pytest.raises(ConfigError, match=r"model\.family 'wam' is not built; did you mean 'wan'"):
        family_named("wam")
