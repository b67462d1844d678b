from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arachne.core.errors import ConfigError
from arachne.core.launch_mode import LaunchMode
from arachne.cost.calibration import fit_device, undisturbed
from arachne.cost.cluster_files import load_cluster, machine_cluster
from arachne.cost.measured_launch import MeasuredLaunch
from arachne.cost.model import CostModel
from tests.cost.made_launches import cascade, measured
from tests.planner.problems import SMALL

ONE, TWO = (0,), (0, 1)
SIZES = [(48, 1, ONE), (48, 8, ONE), (216, 1, ONE), (216, 3, ONE), (1080, 1, ONE), (2112, 1, ONE)]
SPLIT = [(216, 1, TWO), (1080, 1, TWO), (2112, 1, TWO), (216, 4, TWO)]
TRUE = CostModel(model=SMALL, cluster=load_cluster("cpux2"), element_bytes=4)
GUESS = replace(TRUE, cluster=machine_cluster(2))


def measured_all(costs: CostModel, sizes, factor=lambda: 1.0) -> list[MeasuredLaunch]:
    return [measured(costs, *size, factor=factor()) for size in sizes]


@given(
    speed=st.floats(0.01, 1000.0),
    half_rate_tokens=st.floats(0.0, 500.0),
    launch_s=st.floats(0.0, 0.1),
    bandwidth=st.floats(1e7, 1e12),
)
@settings(max_examples=40, deadline=None)
def test_figures_of_a_modelled_machine_are_found_again(
    speed: float, half_rate_tokens: float, launch_s: float, bandwidth: float
):
    device = replace(
        TRUE.cluster.device,
        matmul_flops_per_s=80e9 * speed,
        attention_flops_per_s=50e9 * speed,
        half_rate_tokens=half_rate_tokens,
        launch_s=launch_s,
    )
    link = replace(TRUE.cluster.intra_node, bandwidth_bytes_per_s=bandwidth)
    true = replace(TRUE, cluster=replace(TRUE.cluster, device=device, intra_node=link))

    calibration = fit_device(GUESS, measured_all(true, SIZES + SPLIT))

    assert calibration.p95_error < 5e-3
    assert calibration.num_outliers == 0
    assert calibration.cluster.inter_node == GUESS.cluster.inter_node, "no launch used it"
    fitted = replace(TRUE, cluster=calibration.cluster)
    for tokens, clips, ranks in [(600, 2, ONE), (3120, 1, TWO), (24, 1, TWO)]:
        launch = cascade(tokens, clips)
        assert fitted.launch_s(launch, ranks) == pytest.approx(true.launch_s(launch, ranks), 1e-3)


@given(
    disturbed=st.sets(st.integers(0, 3 * len(SIZES + SPLIT) - 1), max_size=8),
    factor=st.floats(1.5, 20.0),
    noise=st.lists(st.floats(1.0, 1.05), min_size=40, max_size=40),
)
@settings(max_examples=40, deadline=None)
def test_a_fifth_of_disturbed_repeats_does_not_change_what_is_predicted(
    disturbed: set[int], factor: float, noise: list[float]
):
    factors = iter([factor if i in disturbed else noise[i] for i in range(40)])

    calibration = fit_device(GUESS, measured_all(TRUE, (SIZES + SPLIT) * 4, lambda: next(factors)))

    fitted = replace(TRUE, cluster=calibration.cluster)
    for tokens, clips, ranks in (*SIZES, *SPLIT, (600, 2, ONE), (3120, 1, TWO)):
        launch = cascade(tokens, clips)
        assert fitted.launch_s(launch, ranks) == pytest.approx(TRUE.launch_s(launch, ranks), 0.07)
    assert calibration.num_launches == 40
    assert calibration.num_outliers == len(disturbed)
    assert calibration.median_error < 0.05


def test_repeats_count_by_the_fastest_quarter():
    repeats = [measured(TRUE, 216, 1, ONE, factor=f) for f in (3.0, 1.0, 1.1, 2.0)]
    others = [measured(TRUE, 216, 1, TWO, factor=f) for f in (1.3, 1.2, 1.0, 1.4, 1.1)]

    assert undisturbed(repeats + others) == [repeats[1], others[4]]


def test_a_world_of_one_keeps_the_links_it_had():
    alone = replace(TRUE, cluster=machine_cluster(1))

    calibration = fit_device(alone, measured_all(TRUE, SIZES))

    assert calibration.cluster.intra_node == alone.cluster.intra_node
    assert calibration.p95_error < 1e-6


@pytest.mark.parametrize("nics", [0, 1])
def test_launches_across_nodes_tell_of_the_link_between_them(nics):
    cluster = replace(load_cluster("cpux2"), num_nodes=2, gpus_per_node=2, nics_per_node=nics)
    true = replace(TRUE, cluster=cluster)
    wrong = replace(
        cluster,
        intra_node=replace(cluster.intra_node, bandwidth_bytes_per_s=1.0),
        inter_node=replace(cluster.inter_node, latency_s=1.0),
    )
    guess = replace(TRUE, cluster=wrong)
    crossing = [(tokens, 1, (0, 1, 2, 3)) for tokens in (48, 216, 1080, 2112)]

    fitted = fit_device(guess, measured_all(true, SIZES + SPLIT + crossing)).cluster

    for name in ("intra_node", "inter_node"):
        found, real = getattr(fitted, name), getattr(cluster, name)
        assert found.latency_s == pytest.approx(real.latency_s, rel=1e-3)
        assert found.bandwidth_bytes_per_s == pytest.approx(real.bandwidth_bytes_per_s, rel=1e-3)


def test_noise_shows_as_error_of_its_size():
    factors = iter([1.1, 0.9] * 5)

    calibration = fit_device(GUESS, measured_all(TRUE, SIZES + SPLIT, lambda: next(factors)))

    assert 0.02 < calibration.median_error < 0.1
    assert calibration.median_error <= calibration.p95_error < 0.25


@pytest.mark.parametrize("sizes", [SIZES[:1], SIZES[:2], [SIZES[0]] * 4, SIZES[4:5]])
def test_few_or_equal_measurements_still_give_finite_figures(sizes):
    calibration = fit_device(GUESS, measured_all(TRUE, sizes))

    device = calibration.cluster.device
    assert 1e9 < device.matmul_flops_per_s < 1e13
    assert 1e9 < device.attention_flops_per_s < 1e13
    assert calibration.p95_error < 0.01


def test_times_that_do_not_grow_are_taken_as_fixed_cost():
    flat = [replace(m, rank_compute_s=(0.02,), total_s=0.02) for m in measured_all(TRUE, SIZES)]

    assert fit_device(GUESS, flat).median_error < 0.2


def test_where_attention_seems_to_cost_nothing_it_gets_the_rate_of_matrix_products():
    device = replace(TRUE.cluster.device, attention_flops_per_s=1e18)
    true = replace(TRUE, cluster=replace(TRUE.cluster, device=device))
    falling = [measured(true, n, 1, ONE, factor=1.0 - n / 20000) for n in (48, 216, 1080, 2112)]

    found = fit_device(GUESS, falling).cluster.device

    assert found.attention_flops_per_s == found.matmul_flops_per_s < 1e13


def test_a_machine_whose_memory_is_faster_than_guessed_is_reproduced():
    device = replace(TRUE.cluster.device, memory_bytes_per_s=1e12, launch_s=0.0, layer_s=0.0)
    true = replace(TRUE, cluster=replace(TRUE.cluster, device=device))

    calibration = fit_device(GUESS, measured_all(true, SIZES))

    assert calibration.p95_error < 1e-4
    assert calibration.cluster.device.layer_s >= 0.0


def test_what_a_mode_costs_besides_products_is_not_taken_for_products():
    device = replace(TRUE.cluster.device, memory_bytes_per_s=1e9)
    true = replace(TRUE, cluster=replace(TRUE.cluster, device=device))
    ring = LaunchMode(ring=2)
    rings = [measured(true, tokens, 1, TWO, mode=ring) for tokens in (216, 600, 1080, 2112)]

    calibration = fit_device(true, measured_all(true, SIZES) + rings)

    assert calibration.p95_error < 1e-4


def test_no_measurement_is_refused():
    with pytest.raises(ConfigError, match="0 launches and needs at least one"):
        fit_device(GUESS, [])
