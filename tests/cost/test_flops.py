import pytest

from arachne.core.families import family_named
from arachne.cost.flops import forward_flops, forward_flops_split, training_flops

WAN_1_3B = family_named("wan").presets["wan-1.3b"]


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
