from dataclasses import replace

import pytest

from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade
from arachne.core.families import family_named
from arachne.cost.cluster_files import load_cluster
from arachne.cost.flops import training_flops
from arachne.cost.model import CostModel

WAN_1_3B = family_named("wan").presets["wan-1.3b"]
COSTS = CostModel(model=WAN_1_3B, cluster=load_cluster("h100x16"), element_bytes=2)


def cascade(num_tokens: int, num_clips: int = 1) -> Cascade:
    bucket = Bucket(width=16, height=16, frames=1)
    slots = tuple(range(num_clips))
    return Cascade(module="dit", slots=slots, bucket=bucket, num_tokens=num_tokens)


def gpus(degree: int, first: int = 0) -> tuple[int, ...]:
    return tuple(range(first, first + degree))


def test_with_one_rate_and_no_overhead_time_is_flops_over_rate():
    device = replace(
        COSTS.cluster.device,
        matmul_flops_per_s=1e14,
        attention_flops_per_s=1e14,
        half_rate_tokens=0.0,
        launch_s=0.0,
        layer_s=0.0,
        memory_bytes_per_s=1e30,
    )
    costs = replace(COSTS, cluster=replace(COSTS.cluster, device=device))

    expected_s = training_flops(WAN_1_3B, 1560, 2) / 1e14
    assert costs.launch_s(cascade(1560, 2), gpus(1)) == pytest.approx(expected_s)


def test_products_of_half_rate_tokens_run_at_half_the_rate():
    def matmul_s(num_tokens: int, half_rate_tokens: float) -> float:
        device = replace(
            COSTS.cluster.device, attention_flops_per_s=1e30, half_rate_tokens=half_rate_tokens
        )
        costs = replace(COSTS, cluster=replace(COSTS.cluster, device=device))
        return costs.compute_s(cascade(num_tokens), gpus(1)) - costs.launch_overhead_s

    # Text and timestep lose more than half at 512 rows and less, so a little over twice.
    assert 2.0 <= matmul_s(512, 512.0) / matmul_s(512, 0.0) < 2.1


def test_heads_that_do_not_divide_cost_attention():
    # 12 heads on 8 ranks: the fullest rank has 2 of 12, as on 6 ranks.
    def attention_s(degree: int) -> float:
        device = replace(COSTS.cluster.device, attention_flops_per_s=1.0)
        costs = replace(COSTS, cluster=replace(COSTS.cluster, device=device))
        return costs.compute_s(cascade(75600), gpus(degree))

    assert attention_s(8) == pytest.approx(attention_s(6), rel=0.01)
    assert attention_s(4) == pytest.approx(attention_s(12) * 3, rel=0.01)


def test_leaving_the_node_costs_bandwidth():
    inside = COSTS.launch_s(cascade(32760), gpus(8))
    across = COSTS.launch_s(cascade(32760), gpus(8, first=4))

    assert across > inside
    assert COSTS.compute_s(cascade(32760), gpus(8)) < inside


def test_degree_one_sends_nothing():
    assert COSTS.communicate_s(cascade(32760), gpus(1)) == 0.0


def test_stacking_saves_the_overhead_of_launches():
    stacked = COSTS.launch_s(cascade(256, 8), gpus(1))

    assert stacked < 8 * COSTS.launch_s(cascade(256), gpus(1)) - 7 * COSTS.launch_overhead_s


def test_splitting_a_clip_saves_activations_but_no_weights():
    num_parameters = family_named("wan").num_parameters(WAN_1_3B)
    whole = COSTS.launch_bytes(cascade(32760), gpus(1))
    split = COSTS.launch_bytes(cascade(32760), gpus(8))

    assert whole > split > num_parameters * (2 + 4)


def test_a_clip_fits_only_where_memory_allows():
    assert not COSTS.fits(cascade(75600), gpus(1))
    assert COSTS.fits(cascade(75600), gpus(8))


def test_every_rank_needs_a_token():
    assert COSTS.fits(cascade(8), gpus(8))
    assert not COSTS.fits(cascade(7), gpus(8))


def test_the_step_ends_with_reduction_optimizer_and_gather():
    parts = (COSTS.gradient_reduce_s(), COSTS.optimizer_s(), COSTS.parameter_gather_s())
    alone = replace(COSTS, cluster=load_cluster("h100x1"))

    assert min(parts) > 0.0
    assert COSTS.step_overhead_s() == pytest.approx(sum(parts))
    assert alone.gradient_reduce_s() == alone.parameter_gather_s() == 0.0
