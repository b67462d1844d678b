from dataclasses import replace

import pytest

from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade
from arachne.core.families import family_named
from arachne.core.launch_mode import LaunchMode
from arachne.cost.cluster_files import load_cluster
from arachne.cost.collectives import all_gather_s, reduce_scatter_s
from arachne.cost.flops import training_flops
from arachne.cost.model import CostModel
from arachne.cost.model_counts import model_counts
from arachne.cost.training_state import HOST_BYTES_PER_S, TrainingState

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


def test_a_launch_computes_at_the_speed_of_its_slowest_gpu():
    speeds = tuple(0.5 if rank == 3 else 1.0 for rank in range(16))
    mixed = replace(COSTS, cluster=replace(COSTS.cluster, speeds=speeds))
    work = cascade(32760)

    assert mixed.compute_s(work, gpus(4)) == 2 * COSTS.compute_s(work, gpus(4))
    assert mixed.compute_s(work, gpus(4, first=4)) == COSTS.compute_s(work, gpus(4))
    assert mixed.communicate_s(work, gpus(4)) == COSTS.communicate_s(work, gpus(4))
    assert (mixed.gpu_speed(3), mixed.gpu_speed(4)) == (0.5, 1.0)


def with_state(costs: CostModel = COSTS, **settings) -> CostModel:
    return replace(costs, state=TrainingState(**settings))


NUM_PARAMETERS = family_named("wan").num_parameters(WAN_1_3B)
BLOCK_PARAMETERS = model_counts(WAN_1_3B).block_parameters
MEMORY_BYTES_PER_S = COSTS.cluster.device.memory_bytes_per_s


def test_smaller_gradients_are_added_faster():
    assert COSTS.gradient_add_s == pytest.approx(NUM_PARAMETERS * (2 + 8) / MEMORY_BYTES_PER_S)
    half = with_state(gradients="bfloat16")
    assert half.gradient_add_s == pytest.approx(NUM_PARAMETERS * (2 + 4) / MEMORY_BYTES_PER_S)
    assert half.gradient_reduce_s() == COSTS.gradient_reduce_s(), "sums travel in float32"


def test_gradients_on_the_host_come_and_go_in_each_launch_and_come_back_once():
    host = with_state(gradients="host")

    assert host.gradient_add_s == pytest.approx(NUM_PARAMETERS * 8 / HOST_BYTES_PER_S)
    back_s = NUM_PARAMETERS * 4 / HOST_BYTES_PER_S
    assert host.gradient_reduce_s() == pytest.approx(COSTS.gradient_reduce_s() + back_s)


def test_adapters_leave_little_to_add_to_reduce_and_to_step():
    adapters = with_state(num_adapter_weights=NUM_PARAMETERS // 100)

    assert adapters.gradient_add_s == pytest.approx(COSTS.gradient_add_s / 100)
    assert adapters.optimizer_s() == pytest.approx(COSTS.optimizer_s() / 100)
    assert adapters.parameter_gather_s() < COSTS.parameter_gather_s()
    assert adapters.compute_s(cascade(32760), gpus(1)) < COSTS.compute_s(cascade(32760), gpus(1))


def test_swapped_blocks_come_from_the_host_forward_and_backward():
    swapped = with_state(num_adapter_weights=0, swapped_layers=10)
    resident = with_state(num_adapter_weights=0)

    moved_bytes = 2 * 10 * BLOCK_PARAMETERS * 2
    assert swapped.launch_overhead_s - resident.launch_overhead_s == pytest.approx(
        moved_bytes / HOST_BYTES_PER_S
    )


def test_inputs_of_recomputed_blocks_go_to_the_host_and_come_back():
    on_host = with_state(are_inputs_on_host=True)
    recomputed = LaunchMode(recompute_layers=10)
    work = cascade(32760, 2), gpus(4)

    moved_bytes = 2 * 10 * (2 * 32760 / 4) * 1536 * 2
    assert on_host.seconds_in(recomputed, *work)[0] == pytest.approx(
        COSTS.seconds_in(recomputed, *work)[0] + moved_bytes / HOST_BYTES_PER_S
    )
    assert on_host.compute_s(*work) == COSTS.compute_s(*work)


def test_shared_out_parameters_are_gathered_twice_and_gradients_scattered_by_every_launch():
    shared = with_state(parameter_shards=4)
    link = COSTS.cluster.intra_node

    gathered_s = all_gather_s(BLOCK_PARAMETERS * 2, 4, link)
    scattered_s = reduce_scatter_s(NUM_PARAMETERS * 4 / 30, 4, link)
    expected_s = 30 * (2 * gathered_s + scattered_s)
    work = cascade(32760)
    assert shared.communicate_s(work, gpus(8)) == pytest.approx(
        COSTS.communicate_s(work, gpus(8)) + expected_s
    )
    assert COSTS.parameter_exchange_s == 0.0


def test_gradients_for_the_host_are_scattered_in_the_models_type():
    link = COSTS.cluster.intra_node
    shared = with_state(parameter_shards=4, gradients="host")

    gathered_s = all_gather_s(BLOCK_PARAMETERS * 2, 4, link)
    scattered_s = reduce_scatter_s(NUM_PARAMETERS * 2 / 30, 4, link)
    assert shared.parameter_exchange_s == pytest.approx(30 * (2 * gathered_s + scattered_s))


def test_ranks_that_share_out_parameters_add_and_reduce_a_part():
    shared = with_state(parameter_shards=4)

    assert shared.gradient_add_s == pytest.approx(COSTS.gradient_add_s / 4)
    network = COSTS.cluster.inter_node
    assert shared.gradient_reduce_s() == pytest.approx(
        reduce_scatter_s(NUM_PARAMETERS * 4 / 4, 16 // 4, network)
    )
    assert shared.parameter_gather_s() == pytest.approx(
        all_gather_s(NUM_PARAMETERS * 2 / 4, 16 // 4, network)
    )
    assert shared.optimizer_s() == COSTS.optimizer_s()


def test_launches_take_whole_groups_that_share_out_parameters():
    shared = with_state(parameter_shards=4)

    assert shared.fits(cascade(1560), gpus(4))
    assert not shared.fits(cascade(1560), gpus(2))
    assert not shared.fits(cascade(1560), gpus(6))


def test_the_step_ends_with_reduction_optimizer_and_gather():
    parts = (COSTS.gradient_reduce_s(), COSTS.optimizer_s(), COSTS.parameter_gather_s())
    alone = replace(COSTS, cluster=load_cluster("h100x1"))

    assert min(parts) > 0.0
    assert COSTS.step_overhead_s() == pytest.approx(sum(parts))
    assert alone.gradient_reduce_s() == alone.parameter_gather_s() == 0.0
