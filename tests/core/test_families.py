"""What planning knows of the families; the counts are held against diffusers in tests/models."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arachne.core.bucket import Bucket
from arachne.core.errors import ConfigError
from arachne.core.families import FAMILIES, family_named
from arachne.core.families.family import Family

PRESETS = {
    "wan-1.3b": (30, 1536, 1_418_996_800),
    "wan2.2-5b": (30, 3072, 4_999_787_712),
    "wan-14b": (40, 5120, 14_288_491_584),
    "skyreels-v2-14b": (40, 5120, 14_288_491_584),
    "cogvideox-2b": (30, 1920, 1_693_783_872),
    "cogvideox-5b": (42, 3072, 5_570_283_072),
    "cogvideox-1.5-5b": (42, 3072, 5_570_676_352),
    "hunyuanvideo-13b": (60, 3072, 12_821_012_544),
    "hunyuanvideo-1.5-8b": (54, 2048, 8_326_608_160),
    "ltx-video-2b": (28, 2048, 1_923_385_472),
    "ltx-2-19b": (48, 4096, 13_041_520_768),
    "mochi-10b": (48, 3072, 10_027_677_744),
}
"""Blocks, width and parameters: the numbers of elements in the published weights' classes; of LTX-2
its video stream alone."""


def test_presets_have_the_published_sizes():
    found = {
        name: (shape.num_blocks, shape.hidden_size, family.num_parameters(shape))
        for family in FAMILIES.values()
        for name, shape in family.presets.items()
    }
    assert found == PRESETS


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_a_family_accepts_its_presets_and_compresses_as_its_autoencoder_does(family: Family):
    encoder = family.video_encoder
    for shape in family.presets.values():
        family.check(shape)
        assert shape.family == family.name
    assert family.geometry.temporal_compression == encoder.temporal_compression
    assert family.geometry.spatial_compression == encoder.spatial_compression


@pytest.mark.parametrize(
    ("family", "bucket", "num_tokens"),
    [
        # 13 x 30 x 45, 11 x 48 x 85, 33 x 45 x 80, 31 x 30 x 53, 16 x 16 x 24 and 28 x 30 x 53.
        ("cogvideox", "720x480x49", 17_550),
        ("cogvideox15", "1360x768x81", 44_880),
        ("hunyuan_video", "1280x720x129", 118_800),
        ("hunyuan_video15", "848x480x121", 49_290),
        ("ltx", "768x512x121", 6_144),
        ("mochi", "848x480x163", 44_520),
    ],
)
def test_clips_of_the_sizes_that_models_were_published_for_have_so_many_tokens(
    family: str, bucket: str, num_tokens: int
):
    assert family_named(family).geometry.num_tokens(Bucket.parse(bucket)) == num_tokens


def test_ltx_takes_frames_of_8k_plus_1_and_sides_of_32():
    geometry = family_named("ltx").geometry
    with pytest.raises(ConfigError) as caught:
        geometry.check(Bucket.parse("768x512x85"))
    assert str(caught.value) == "bucket 768x512x85: 85 frames are not 8k+1; use 81 or 89"
    with pytest.raises(ConfigError) as caught:
        geometry.check(Bucket.parse("832x464x81"))
    assert str(caught.value) == (
        "bucket 832x464x81: height 464 is not a multiple of 32; use 448 or 480"
    )


def test_where_tokens_span_two_latent_frames_the_first_one_fills_one_by_itself():
    geometry = family_named("cogvideox15").geometry
    grids = [geometry.latent_grid(Bucket.parse(f"64x32x{frames}")) for frames in (1, 9, 81)]
    assert grids == [(2, 4, 8), (4, 4, 8), (22, 4, 8)]
    assert geometry.token_grid(Bucket.parse("64x32x81")) == (11, 2, 4)
    with pytest.raises(ConfigError, match="85 frames are not 8k\\+1; use 81 or 89"):
        geometry.check(Bucket.parse("64x32x85"))


def test_a_width_that_the_class_cannot_have_is_refused_with_the_one_it_has():
    family = family_named("cogvideox_2b")
    shape = replace(family.presets["cogvideox-2b"], ffn_size=8192)
    with pytest.raises(ConfigError) as caught:
        family.check(shape)
    assert str(caught.value) == (
        "model.ffn_size is 8192; a cogvideox_2b model of width 1920 has 7680"
    )


def test_a_family_that_leaves_the_feed_forward_width_open_takes_any():
    family = family_named("wan")
    family.check(replace(family.presets["wan-1.3b"], ffn_size=1000))


@given(
    family=st.sampled_from(list(FAMILIES.values())),
    num_layers=st.integers(2, 60),
    num_heads=st.integers(12, 40),
)
def test_products_use_most_weights_of_a_model_and_no_weight_that_it_has_not(
    family: Family, num_layers: int, num_heads: int
):
    preset = next(iter(family.presets.values()))
    shape = replace(preset, num_layers=num_layers, num_heads=num_heads)
    if family.fixed_ffn_size is not None:
        shape = replace(shape, ffn_size=family.fixed_ffn_size(shape.hidden_size))
    num_weights = family.flop_inputs(shape).num_weights
    assert 0.99 * family.num_parameters(shape) <= num_weights <= family.num_parameters(shape)
