import pytest

from arachne.core.cluster import Cluster
from arachne.cost.calibration import Calibration
from arachne.runtime.launcher import run_ranks
from arachne.runtime.world import World
from arachne.trainer import measure
from arachne.trainer.config import RunConfig
from arachne.trainer.measure import calibrated, guessed_cluster, measured_shapes
from tests.trainer.tiny_runs import tiny_config, tiny_session, with_manifest

Found = tuple[list[Calibration], list[str], bool, int]


def measured_on(world: World, config: RunConfig) -> Found:
    """Two calibrations, the measured shapes, whether a gradient was left, events left."""
    with tiny_session(world, config) as (session, _):
        found = [calibrated(session) for _ in range(2)]
        has_gradient = any(bool(g.any()) for _, g in session.optimizer.gradients())
        log = session.recorder.finish(step=0, planner="")
        return found, list(map(str, measured_shapes(session))), has_gradient, len(log.events)


@pytest.mark.distributed
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_calibration_is_equal_on_all_ranks_and_leaves_nothing_behind(clips, tmp_path, world_size):
    config = with_manifest(tiny_config(clips, tmp_path / "run", dtype="float32"))
    results = run_ranks(world_size, measured_on, (config,))

    calibrations = results[0][0]
    for found, shapes, has_gradient, num_events in results:
        assert found == calibrations
        # From 9 tokens to 36; shapes of equally many tokens are in the order of buckets.
        assert (shapes[0], shapes[-1]) == ("48x48x1", "64x48x9")
        assert not has_gradient
        assert num_events == 0
    for calibration in calibrations:
        assert calibration.cluster.num_gpus == world_size
        # Up to five shapes, 2 to 8 times each: on one rank, or on two apart and two together.
        assert 2 * 5 * (2 * world_size - 1) <= calibration.num_launches
        assert calibration.num_launches <= 8 * 5 * (2 * world_size - 1)
        assert 0 <= calibration.num_outliers < calibration.num_launches
        assert calibration.cluster.device.matmul_flops_per_s > 0.0
    assert calibrations[0] != calibrations[1], "the second is measured, not remembered"


def guessed_on(world: World, config: RunConfig) -> Cluster:
    """What a rank guesses of machines that have less memory the higher their ranks."""
    measure._memory_bytes = lambda world: 1e9 / (1 + world.rank)
    with tiny_session(world, config) as (session, _):
        return guessed_cluster(session)


@pytest.mark.distributed
def test_ranks_plan_alike_with_the_memory_of_the_one_that_has_least(clips, tmp_path):
    config = with_manifest(tiny_config(clips, tmp_path / "run", dtype="float32"))
    first, second = run_ranks(2, guessed_on, (config,))
    assert first == second
    assert first.device.memory_bytes == 5e8
