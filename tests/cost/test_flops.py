from dataclasses import replace

import pytest

from arachne.core.families import family_named
from arachne.cost.flops import (
    forward_flops,
    forward_flops_split,
    num_matmul_weights,
    training_flops,
)

WAN_1_3B = family_named("wan").presets["wan-1.3b"]
HUNYUAN = family_named("hunyuan_video").presets["hunyuanvideo-13b"]
COGVIDEOX = family_named("cogvideox_2b").presets["cogvideox-2b"]


def test_wan_at_480p_and_five_seconds_is_283_tflop():
    assert forward_flops(WAN_1_3B, 32760) == pytest.approx(283.0e12, rel=0.005)


def test_clips_add_up_and_tokens_of_different_clips_do_not_attend():
    assert forward_flops(WAN_1_3B, 1560, 3) == pytest.approx(3 * forward_flops(WAN_1_3B, 1560))


def test_self_attention_grows_with_the_square():
    small = forward_flops_split(WAN_1_3B, 1000)
    large = forward_flops_split(WAN_1_3B, 2000)

    assert large.self_attention == 4 * small.self_attention
    assert large.cross_attention == 2 * small.cross_attention
    assert large.sharded_matmul == 2 * small.sharded_matmul


def test_training_is_three_forward_passes():
    assert training_flops(WAN_1_3B, 1560, 2) == 3 * forward_flops(WAN_1_3B, 1560, 2)


def test_in_joint_attention_text_attends_and_is_attended():
    num_tokens = 1000
    pairs = (num_tokens + 256) ** 2
    split = forward_flops_split(HUNYUAN, num_tokens)

    assert split.self_attention == 4 * pairs * 3072 * 60
    assert split.cross_attention == 0


def test_in_joint_attention_the_text_tokens_are_shared_out_with_the_video():
    """CogVideoX has one set of weights in its blocks: text counts there like 226 video tokens."""
    video_weights = 16 * 4 * 1920  # output projection, which text does not meet
    per_token = (
        forward_flops_split(COGVIDEOX, 1001).sharded_matmul
        - forward_flops_split(COGVIDEOX, 1000).sharded_matmul
    )
    text_alone = forward_flops_split(COGVIDEOX, 1000).sharded_matmul - 1000 * per_token

    assert text_alone == 226 * (per_token - 2 * video_weights)


def test_weights_that_video_and_text_share_are_counted_once():
    in_blocks = 30 * (4 * 1920**2 + 2 * 1920 * 7680)
    outside = num_matmul_weights(COGVIDEOX) - in_blocks
    text_and_patches = 4096 * 1920 + 2 * 64 * 1920
    time = 1920 * 512 + 512**2 + (30 * 12 + 2) * 512 * 1920
    assert outside == text_and_patches + time


def test_in_cross_attention_no_rank_is_spared_the_text():
    """Wan's text meets its weights whole on every rank, so it adds nothing to what is shared."""
    longer = replace(WAN_1_3B, text_tokens=1024)
    ours, theirs = forward_flops_split(WAN_1_3B, 1000), forward_flops_split(longer, 1000)

    assert theirs.sharded_matmul == ours.sharded_matmul
    assert theirs.replicated_matmul > 1.9 * ours.replicated_matmul
    assert theirs.cross_attention == 2 * ours.cross_attention
