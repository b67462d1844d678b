from dataclasses import replace
from math import inf

import pytest

from arachne.core.cluster import Link
from arachne.core.families import family_named
from arachne.core.launch_mode import LaunchMode
from arachne.core.model_shape import ModelShape
from arachne.cost.traffic import launch_traffic

SHAPE = ModelShape(
    family="wan",
    num_layers=5,
    num_heads=4,
    head_size=8,
    ffn_size=64,
    latent_channels=16,
    text_size=10,
    text_tokens=7,
)
STEPS = Link(latency_s=1.0, bandwidth_bytes_per_s=inf)
BYTES = Link(latency_s=0.0, bandwidth_bytes_per_s=1.0)
NOTHING = Link(latency_s=0.0, bandwidth_bytes_per_s=inf)


def traffic(degree: int, *, ring: int = 1, recompute_layers: int = 0, shape: ModelShape = SHAPE):
    mode = LaunchMode(ring=ring, recompute_layers=recompute_layers)
    return launch_traffic(shape, 96, 2, degree, 2, mode)


def test_ulysses_trades_four_shards_a_layer_and_direction():
    # 192 tokens of 32 numbers of 2 bytes on 4 ranks: 3072 bytes each, of which 3/4 leave.
    layers = 5 * 2 * 4 * 3072 * 3 / 4
    output = 2 * 192 * 64 * 2 * 3 / 4  # 16 latent channels in patches of 4; there and back

    assert traffic(4).seconds(BYTES) == layers + output
    assert traffic(4).seconds(STEPS) == 5 * 2 * 2 * 3 + 2 * 3


def test_a_ring_sends_keys_and_values_on_and_gradients_home():
    # 4 parts of 48 tokens: keys and values are 2 · 48 · 32 numbers of 2 bytes. 3 sends forward, and
    # 3 of keys and values and 3 of their gradients backward.
    kv_bytes = 2 * 48 * 32 * 2
    output = 2 * 192 * 64 * 2 * 3 / 4

    assert traffic(4, ring=4).seconds(BYTES) == 5 * 9 * kv_bytes + output
    assert traffic(4, ring=4).seconds(STEPS) == 5 * 9 + 2 * 3


def test_with_both_each_rank_keeps_its_heads_of_its_part():
    # Ulysses groups of 2 trade shards of 48 tokens; the ring sends 96 tokens of 2 heads once.
    trades = 5 * 2 * 4 * 48 * 32 * 2 / 2
    sends = 5 * 3 * (2 * 96 * 16 * 2)
    output = 2 * 192 * 64 * 2 * 3 / 4

    assert traffic(4, ring=2).seconds(BYTES) == trades + sends + output


def test_heads_that_do_not_divide_make_the_ring_send_more():
    # 4 heads on 3 ranks: one holds 2.
    even = traffic(8, ring=2).kv_bytes
    odd = traffic(6, ring=2).kv_bytes

    assert (even, odd) == (2 * 96 * 8 * 2, 2 * 96 * 16 * 2)


@pytest.mark.parametrize(
    ("ring", "forward_bytes"),
    [(1, 4 * 3072 * 3 / 4), (2, 4 * 3072 / 2 + 2 * 96 * 16 * 2), (4, 3 * 2 * 48 * 32 * 2)],
)
def test_a_recomputed_layer_exchanges_its_forward_once_more(ring: int, forward_bytes: float):
    more = traffic(4, ring=ring, recompute_layers=3).seconds(BYTES)

    assert more - traffic(4, ring=ring).seconds(BYTES) == 3 * forward_bytes


def test_ulysses_groups_use_their_own_link_and_rings_the_common_one():
    both = traffic(4, ring=2)

    trades = both.seconds(NOTHING, BYTES)
    assert trades == 5 * 2 * 4 * 48 * 32 * 2 / 2
    assert both.seconds(BYTES, NOTHING) + trades == both.seconds(BYTES)


def test_joint_attention_exchanges_text_too():
    shape = replace(family_named("cogvideox_2b").presets["cogvideox-2b"], text_tokens=96)

    joint = launch_traffic(shape, 96, 1, 2, 2)
    assert joint.shard_bytes == (96 + 96) / 2 * 1920 * 2
    assert joint.output_bytes == 96 * 64 * 2


def test_one_rank_sends_nothing():
    assert traffic(1, recompute_layers=5).seconds(STEPS) == 0.0
