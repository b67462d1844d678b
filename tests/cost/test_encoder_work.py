"""What encoder cascades cost; the figures are held against the real classes in tests/models."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade, Encoder
from arachne.core.families import FAMILIES
from arachne.core.families.encoders import DCT_CODEC, HASHED_TEXT, HUNYUAN_VIDEO_VAE, WAN_VAE
from arachne.cost.encoder_work import (
    encoder_work,
    text_encoder_flops,
    video_encoder_elements,
    video_encoder_flops,
)

VIDEO_ENCODERS = st.sampled_from([family.video_encoder for family in FAMILIES.values()])
HUNYUAN = FAMILIES["hunyuan_video"]


def cascade(module: Encoder, bucket: str, num_clips: int = 1) -> Cascade:
    return Cascade(
        module=module, slots=tuple(range(num_clips)), bucket=Bucket.parse(bucket), num_tokens=1
    )


@given(
    encoder=VIDEO_ENCODERS,
    later_latents=st.integers(0, 60),
    sides=st.tuples(*[st.integers(1, 40)] * 2),
)
def test_a_longer_clip_costs_more_and_holds_no_less(encoder, later_latents, sides):
    width, height = (32 * side for side in sides)
    shorter, longer = (
        Bucket(width=width, height=height, frames=latents * encoder.temporal_compression + 1)
        for latents in (later_latents, later_latents + 1)
    )
    assert video_encoder_flops(encoder, shorter) < video_encoder_flops(encoder, longer)
    assert video_encoder_elements(encoder, shorter) <= video_encoder_elements(encoder, longer)


def test_an_encoder_that_works_piece_by_piece_needs_no_more_memory_for_longer_clips():
    short, long = Bucket.parse("832x480x5"), Bucket.parse("832x480x481")
    assert video_encoder_elements(WAN_VAE, short) == video_encoder_elements(WAN_VAE, long)
    assert video_encoder_elements(WAN_VAE, Bucket.parse("832x480x1")) < video_encoder_elements(
        WAN_VAE, short
    )


def test_pieces_that_overlap_are_paid_for_twice():
    """29 frames are cut at 0, 12 and 24 into pieces of 17, 17 and 5: 5 + 5 + 2 latent frames."""
    no_attention = replace(HUNYUAN_VIDEO_VAE, attention_size=0)
    pixels = 832 * 480
    first, later = no_attention.first_frame_flops, no_attention.latent_frame_flops
    flops = video_encoder_flops(no_attention, Bucket.parse("832x480x29"))
    assert flops == pixels * (3 * first + (4 + 4 + 1) * later)
    # 13 frames fit into one piece.
    flops = video_encoder_flops(no_attention, Bucket.parse("832x480x13"))
    assert flops == pixels * (first + 3 * later)


def test_attention_over_all_frames_of_a_large_clip_sets_its_memory():
    """5 latent frames of 136 x 240: three numbers for each of their pairs."""
    elements = video_encoder_elements(HUNYUAN_VIDEO_VAE, Bucket.parse("1920x1088x49"))
    assert elements == 3 * (5 * 136 * 240) ** 2


def test_encoders_of_text_add_up_and_only_the_largest_needs_working_memory():
    llama, clip = HUNYUAN.text_encoders
    both = encoder_work(cascade("text", "832x480x81", 3), WAN_VAE, (llama, clip), 2)
    alone = encoder_work(cascade("text", "832x480x81", 3), WAN_VAE, (llama,), 2)

    assert both.flops == 3 * (text_encoder_flops(llama) + text_encoder_flops(clip))
    assert both.parameter_bytes == 2 * (llama.num_parameters + clip.num_parameters)
    assert both.working_bytes == alone.working_bytes


def test_clips_of_a_video_cascade_are_encoded_one_after_another():
    one, four = (
        encoder_work(cascade("vae", "832x480x81", num_clips), WAN_VAE, (), 4)
        for num_clips in (1, 4)
    )
    assert four.flops == 4 * one.flops
    assert four.working_bytes == one.working_bytes
    assert four.parameter_bytes == one.parameter_bytes == 4 * 126_892_531


def test_encoding_a_480p_clip_with_wan_is_164_tflop_and_its_caption_4_8():
    """21 latent frames; about 0.6 of one forward pass of wan-1.3b over the same clip (283)."""
    vae = encoder_work(cascade("vae", "832x480x81"), WAN_VAE, (), 4)
    text = encoder_work(cascade("text", "832x480x81"), WAN_VAE, FAMILIES["wan"].text_encoders, 2)
    assert vae.flops == pytest.approx(163.7e12, rel=0.01)
    assert text.flops == pytest.approx(4.84e12, rel=0.01)


def test_the_training_free_encoders_cost_next_to_nothing():
    bucket = Bucket.parse("832x480x81")
    assert video_encoder_flops(DCT_CODEC, bucket) < 1e-3 * video_encoder_flops(WAN_VAE, bucket)
    assert text_encoder_flops(HASHED_TEXT) < 1e7
    work = encoder_work(cascade("text", "832x480x81"), DCT_CODEC, (), 4)
    assert (work.flops, work.parameter_bytes, work.working_bytes) == (0.0, 0.0, 0.0)
