import pytest

from arachne.core.families import family_named
from arachne.core.launch_mode import LaunchMode
from arachne.cost.flops import forward_flops_split, num_matmul_weights
from arachne.cost.model_counts import model_counts
from arachne.cost.rank_work import rank_work
from arachne.cost.trained_part import TrainedPart
from arachne.cost.training_state import TrainingState

WAN_1_3B = family_named("wan").presets["wan-1.3b"]
FLOPS = forward_flops_split(WAN_1_3B, 32760, 2)


def work(degree: int, *, ring: int = 1, recompute_layers: int = 0, adapters: int | None = None):
    mode = LaunchMode(ring=ring, recompute_layers=recompute_layers)
    state = TrainingState(num_adapter_weights=adapters)
    return rank_work(WAN_1_3B, 32760, 2, degree, mode, state)


def test_one_rank_does_three_forwards():
    assert work(1).matmul_flops == 3 * FLOPS.matmul
    assert work(1).attention_flops == 3 * FLOPS.attention
    assert work(1).flops_per_half_rate_token == 3 * 2 * num_matmul_weights(WAN_1_3B)


def test_recomputed_blocks_add_their_share_of_a_forward():
    # 15 of 30 blocks: three and a half forwards.
    half = work(8, recompute_layers=15)

    assert half.matmul_flops == pytest.approx(work(8).matmul_flops * 3.5 / 3)
    assert half.attention_flops == pytest.approx(work(8).attention_flops * 3.5 / 3)
    assert half.flops_per_half_rate_token == pytest.approx(
        work(8).flops_per_half_rate_token * 3.5 / 3
    )


@pytest.mark.parametrize(
    ("degree", "ring", "share"),
    [(8, 1, 2 / 12), (8, 2, 3 / 12 / 2), (8, 4, 6 / 12 / 4), (8, 8, 1 / 8), (24, 1, 1 / 12)],
)
def test_the_fullest_rank_has_its_heads_of_its_part(degree: int, ring: int, share: float):
    expected = 3 * (FLOPS.self_attention * share + FLOPS.cross_attention / degree)

    assert work(degree, ring=ring).attention_flops == pytest.approx(expected)


def test_a_ring_changes_no_matrix_product():
    assert work(8, ring=4).matmul_flops == work(8).matmul_flops


def test_frozen_weights_need_no_gradient_of_their_own():
    frozen = work(4, adapters=1_000_000)

    adapter_flops = 3 * 2 * 1_000_000 * 2 * 32760 / 4
    assert frozen.matmul_flops == pytest.approx(work(4).matmul_flops * 2 / 3 + adapter_flops)
    assert frozen.attention_flops == work(4).attention_flops


def test_recomputing_frozen_blocks_adds_a_third_pass():
    frozen, again = work(4, adapters=0), work(4, adapters=0, recompute_layers=30)

    assert again.matmul_flops == pytest.approx(frozen.matmul_flops * 3 / 2)


def test_blocks_that_the_backward_does_not_reach_cost_their_forward():
    num_trained = model_counts(WAN_1_3B).parameters // 5
    part = TrainedPart(num_parameters=num_trained, blocks=("passed",) * 24 + ("trained",) * 6)
    some = rank_work(WAN_1_3B, 32760, 2, 4, state=TrainingState(trained=part))

    assert some.matmul_flops == pytest.approx(work(4).matmul_flops * (1 + 0.2 + 0.2) / 3, rel=1e-6)
    assert some.attention_flops == pytest.approx(work(4).attention_flops * (1 + 2 * 0.2) / 3)
