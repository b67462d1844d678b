from dataclasses import replace
from random import Random

import pytest

from arachne.core.cluster import Cluster
from arachne.core.launch_mode import WHOLE, LaunchMode
from arachne.cost.cluster_files import load_cluster
from arachne.cost.measured_launch import MeasuredLaunch
from arachne.cost.model import CostModel
from arachne.cost.online_calibration import OnlineCalibration
from tests.cost.made_launches import cascade, measured
from tests.planner.problems import SMALL

TRUE = CostModel(model=SMALL, cluster=load_cluster("cpux2"), element_bytes=4)
TOKENS = (48, 96, 216, 600, 1080, 2112, 3120)
ALIKE = (1.0, 1.0)


def off_by(factor: float, cluster: Cluster = TRUE.cluster) -> CostModel:
    """Costs that are `factor` times the true ones."""
    device, link = cluster.device, cluster.intra_node
    slowed = replace(
        device,
        matmul_flops_per_s=device.matmul_flops_per_s / factor,
        attention_flops_per_s=device.attention_flops_per_s / factor,
        memory_bytes_per_s=device.memory_bytes_per_s / factor,
        launch_s=device.launch_s * factor,
        layer_s=device.layer_s * factor,
    )
    slow_link = replace(
        link,
        latency_s=link.latency_s * factor,
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / factor,
    )
    return replace(TRUE, cluster=replace(cluster, device=slowed, intra_node=slow_link))


def steps(
    count: int,
    *,
    slowness: tuple[float, ...] = ALIKE,
    noise: float = 0.04,
    disturbed: float = 0.1,
    seed: int = 0,
    tokens: tuple[int, ...] = TOKENS,
) -> list[list[MeasuredLaunch]]:
    """Launches of some steps on two ranks of the true machine, with noise and disturbances."""
    random = Random(seed)
    found: list[list[MeasuredLaunch]] = []
    for _ in range(count):
        launches: list[MeasuredLaunch] = []
        for ranks in ((0, 1), (0,), (0,), (1,), (1,)):
            factor = 1.0 + random.uniform(-noise, noise)
            factor *= random.uniform(1.5, 4.0) if random.random() < disturbed else 1.0
            size = random.choice(tokens), random.choice((1, 2))
            launches.append(measured(TRUE, *size, ranks, factor=factor, slowness=slowness))
        found.append(launches)
    return found


def after(costs: CostModel, observed: list[list[MeasuredLaunch]]) -> OnlineCalibration:
    online = OnlineCalibration(costs)
    for launches in observed:
        online.observe(launches)
    return online


def worst_error(cluster: Cluster) -> float:
    """Of what a cluster predicts for the true machine, over sizes that were met and others."""
    found = replace(TRUE, cluster=replace(cluster, speeds=()))
    pairs = [(cascade(n, 1), ranks) for n in (*TOKENS, 300, 1500) for ranks in ((0,), (0, 1))]
    return max(abs(found.launch_s(*pair) / TRUE.launch_s(*pair) - 1.0) for pair in pairs)


@pytest.mark.parametrize("factor", [0.5, 1.8, 2.0, 5.0])
def test_a_model_that_is_wrong_by_a_factor_is_right_after_one_recalibration(factor):
    online = after(off_by(factor), steps(10))

    found = online.recalibrate()

    assert found is not None
    assert found.is_taken
    assert found.error_before == pytest.approx(abs(factor - 1.0), rel=0.1)
    assert found.error_after < 0.05
    assert worst_error(online.cluster) < 0.12
    for launches in steps(10, seed=1):
        online.observe(launches)
    online.recalibrate()
    assert worst_error(online.cluster) < 0.08


def test_a_machine_that_changes_is_followed_and_what_it_was_before_does_not_count():
    online = after(TRUE, steps(80))
    online.recalibrate()
    changed = [
        replace(
            each,
            rank_compute_s=tuple(1.5 * x for x in each.rank_compute_s),
            total_s=1.5 * each.total_s,
        )
        for launches in steps(15, seed=1, tokens=(48, 600, 2112))
        for each in launches
    ]
    online.observe(changed)

    found = online.recalibrate()

    assert found is not None
    assert found.error_before == pytest.approx(1 / 3, abs=0.05)
    assert found.error_after < 0.05
    now = replace(TRUE, cluster=online.cluster)
    for num_tokens in TOKENS:
        launch = cascade(num_tokens, 1), (0,)
        assert now.launch_s(*launch) == pytest.approx(1.5 * TRUE.launch_s(*launch), rel=0.15)


def test_nothing_observed_changes_nothing():
    online = OnlineCalibration(TRUE)

    assert online.recalibrate() is None
    assert online.cluster == TRUE.cluster


def test_a_refit_that_predicts_worse_is_not_taken():
    # Most launches are as predicted; the rest would draw a least-squares fit away from them.
    launches = [
        measured(TRUE, n, 1, (i % 2,), factor=1.09 if i % 5 < 2 else 1.0)
        for i, n in enumerate(TOKENS * 5)
    ]
    online = after(TRUE, [launches])

    found = online.recalibrate()

    assert found is not None
    assert not found.is_taken
    assert found.error_before == found.error_after == pytest.approx(0.0, abs=1e-9)
    assert online.cluster == TRUE.cluster


def test_one_shape_corrects_what_is_predicted_for_all():
    online = after(off_by(5.0), [[measured(TRUE, 1080, 1, (i % 2,))] for i in range(6)])

    online.recalibrate()

    found = replace(TRUE, cluster=online.cluster)
    for num_tokens in TOKENS:
        launch = cascade(num_tokens, 1)
        assert found.launch_s(launch, (0,)) == pytest.approx(TRUE.launch_s(launch, (0,)), rel=0.01)


def test_the_same_launches_give_the_same_cluster():
    one, other = (after(off_by(2.0), steps(10)) for _ in range(2))

    assert one.recalibrate() == other.recalibrate()
    assert one.cluster == other.cluster


def test_a_slow_rank_gets_its_speed_at_the_second_sight_and_does_not_blur_the_rates():
    online = OnlineCalibration(off_by(2.0))
    judged = []
    for turn in range(3):
        for launches in steps(10, slowness=(1.0, 1.5), seed=turn):
            online.observe(launches)
        judged.append((online.recalibrate(), online.cluster.speeds))

    (first, first_speeds), (second, second_speeds), (third, _) = judged
    assert first is not None
    assert second is not None
    assert third is not None
    assert first.slowed == ()
    assert first_speeds == ()
    assert second.slowed == (1,)
    assert second_speeds == (1.0, pytest.approx(1 / 1.5, rel=0.05))
    assert third.slowed == ()
    assert online.scores == {0: pytest.approx(1.0, abs=0.05), 1: pytest.approx(1.5, rel=0.05)}
    assert worst_error(online.cluster) < 0.1


def test_launches_in_every_mode_correct_the_rates():
    modes = (LaunchMode(recompute_layers=2), LaunchMode(ring=2), LaunchMode(recompute_layers=3))
    launches = [
        measured(TRUE, n, 1, (0, 1) if mode.ring == 2 else (i % 2,), mode=mode)
        for i, n in enumerate(TOKENS * 3)
        for mode in modes
    ]
    online = after(off_by(2.0), [launches])

    online.recalibrate()

    found = replace(TRUE, cluster=online.cluster)
    for mode in (WHOLE, *modes):
        launch = cascade(600, 2), (0, 1)
        assert sum(found.seconds_in(mode, *launch)) == pytest.approx(
            sum(TRUE.seconds_in(mode, *launch)), rel=0.1
        )


def test_encoders_say_nothing_of_the_transformer():
    launch = measured(TRUE, 216, 1, (0,), factor=9.0)
    text = replace(launch.launch, cascade=replace(launch.launch.cascade, module="text"))
    online = after(TRUE, [[replace(launch, launch=text)] * 8])

    assert online.recalibrate() is None


def test_ranks_that_have_more_heads_than_others_do_not_count_as_slow():
    # 4 heads on 3 ranks: one has two.
    cluster = load_cluster("cpux3")
    online = OnlineCalibration(replace(TRUE, cluster=cluster))
    uneven = measured(replace(TRUE, cluster=cluster), 1080, 1, (0, 1, 2), slowness=(1.0, 0.6, 0.6))

    for _ in range(3):
        online.observe([uneven] * 8)
        online.recalibrate()

    assert online.scores == {}
    assert online.cluster.speeds == ()
