from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade
from arachne.core.errors import ConfigError
from arachne.cost.calibration import Measurement, fit_device
from arachne.cost.cluster_files import load_cluster, machine_cluster
from arachne.cost.model import CostModel
from tests.planner.problems import SMALL

SIZES = [(48, 1, 1), (48, 8, 1), (216, 1, 1), (216, 3, 1), (1080, 1, 1), (2112, 1, 1)]
SPLIT = [(216, 1, 2), (1080, 1, 2), (2112, 1, 2), (216, 4, 2)]
TRUE = CostModel(model=SMALL, cluster=load_cluster("cpux2"), element_bytes=4)
GUESS = machine_cluster(2)


def measured(costs: CostModel, sizes, noise=lambda: 1.0) -> list[Measurement]:
    return [
        Measurement(
            num_tokens=tokens,
            num_clips=clips,
            degree=degree,
            compute_s=costs.compute_s(cascade(tokens, clips), tuple(range(degree))) * noise(),
            communicate_s=costs.communicate_s(cascade(tokens, clips), tuple(range(degree))),
        )
        for tokens, clips, degree in sizes
    ]


def cascade(num_tokens: int, num_clips: int) -> Cascade:
    bucket = Bucket(width=1, height=1, frames=1)
    slots = tuple(range(num_clips))
    return Cascade(module="dit", slots=slots, bucket=bucket, num_tokens=num_tokens)


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

    calibration = fit_device(SMALL, GUESS, measured(true, SIZES + SPLIT))

    assert calibration.p95_error < 1e-4
    fitted = replace(TRUE, cluster=calibration.cluster)
    for tokens, clips, degree in [(600, 2, 1), (3120, 1, 2), (24, 1, 2)]:
        launch, ranks = cascade(tokens, clips), tuple(range(degree))
        assert fitted.launch_s(launch, ranks) == pytest.approx(true.launch_s(launch, ranks), 1e-3)


def test_a_world_of_one_keeps_the_link_it_had():
    calibration = fit_device(SMALL, machine_cluster(1), measured(TRUE, SIZES))

    assert calibration.cluster.intra_node == GUESS.intra_node
    assert calibration.p95_error < 1e-6


def test_noise_shows_as_error_of_its_size():
    factors = iter([1.1, 0.9] * 5)
    noisy = measured(TRUE, SIZES + SPLIT, noise=lambda: next(factors))

    calibration = fit_device(SMALL, GUESS, noisy)

    assert 0.02 < calibration.median_error < 0.1
    assert calibration.median_error <= calibration.p95_error < 0.25


@pytest.mark.parametrize("sizes", [SIZES[:1], SIZES[:2], [SIZES[0]] * 4, SIZES[4:5]])
def test_few_or_equal_measurements_still_give_finite_figures(sizes):
    calibration = fit_device(SMALL, GUESS, measured(TRUE, sizes))

    device = calibration.cluster.device
    assert 0.0 < device.matmul_flops_per_s <= 1e18
    assert 0.0 < device.attention_flops_per_s <= 1e18
    assert calibration.p95_error < 0.01


def test_times_that_do_not_grow_are_taken_as_fixed_cost():
    flat = [replace(m, compute_s=0.02) for m in measured(TRUE, SIZES)]

    calibration = fit_device(SMALL, GUESS, flat)

    assert calibration.median_error < 0.2


def test_a_machine_whose_memory_is_faster_than_guessed_is_reproduced():
    device = replace(TRUE.cluster.device, memory_bytes_per_s=1e12, launch_s=0.0, layer_s=0.0)
    true = replace(TRUE, cluster=replace(TRUE.cluster, device=device))

    assert fit_device(SMALL, GUESS, measured(true, SIZES)).p95_error < 1e-4


def test_no_measurement_is_refused():
    with pytest.raises(ConfigError, match="0 measurements and needs at least one"):
        fit_device(SMALL, GUESS, [])
