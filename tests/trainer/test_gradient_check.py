from types import SimpleNamespace
from typing import Any

import pytest

from arachne.cost.cluster_files import load_cluster
from arachne.runtime.launcher import run_ranks
from arachne.runtime.world import World
from arachne.trainer import step
from arachne.trainer.config import RunConfig
from arachne.trainer.gradient_check import gradient_errors
from arachne.trainer.planning import plan_batch
from tests.trainer.tiny_runs import changed, plan_of, tiny_config, tiny_session, with_manifest

PLANNERS = ("arachne", "static_dp", "static_dp_longest_first", "static_sp")


@pytest.fixture(scope="module")
def config(clips, tmp_path_factory) -> RunConfig:
    # Three clips: their weights have no short binary fraction, as float32 has it.
    return with_manifest(tiny_config(clips, tmp_path_factory.mktemp("check") / "run", batch=3))


def errors_on(world: World, config: RunConfig, plant: bool = False) -> dict[str, float]:
    if plant:
        run_launches = step.run_launches

        def forgetting_degrees(plan: Any, *, work: Any, **options: Any) -> None:
            def wrong(launch: Any) -> None:
                work(SimpleNamespace(cascade=launch.cascade, degree=1))

            run_launches(plan, work=wrong, **options)

        step.run_launches = forgetting_degrees
    with tiny_session(world, config) as (session, _):
        cluster = load_cluster(f"cpux{world.size}")
        chosen = session.step_batch(1)
        plans = {name: plan_batch(session.plan_request(1, cluster, name)) for name in PLANNERS}
        everyone = tuple(range(world.size))
        plans["mixed"] = plan_of(
            chosen.batch, world.size, [((0,), everyone), ((1,), (0,)), ((2,), everyone)]
        )
        errors = gradient_errors(session, chosen, list(plans.values()))
        assert all(not gradient.any() for _, gradient in session.optimizer.gradients())
        return dict(zip(plans, errors, strict=True))


@pytest.mark.distributed
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_planners_gradient_is_that_of_one_process(config, world_size):
    for errors in run_ranks(world_size, errors_on, (config,)):
        assert set(errors) == {*PLANNERS, "mixed"}
        assert all(error < 1e-12 for error in errors.values()), errors


def test_in_float32_the_error_is_rounding_only(config):
    (errors,) = run_ranks(1, errors_on, (changed(config, "model", dtype="float32"),))
    assert 0.0 < errors["arachne"] < 1e-5


@pytest.mark.distributed
def test_a_launch_whose_members_each_count_a_clip_whole_is_found_out(config):
    # A share that is counted on every member makes the gradient of split clips twice too large.
    for errors in run_ranks(2, errors_on, (config, True)):
        assert errors["static_sp"] == pytest.approx(1.0, rel=1e-9)
        assert errors["mixed"] > 0.1
        assert errors["static_dp"] < 1e-12
