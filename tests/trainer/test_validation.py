"""Validation loss, broken down, on one to three ranks."""

from statistics import fmean

import pytest

from arachne.cost.cluster_files import load_cluster
from arachne.runtime.launcher import run_ranks
from arachne.runtime.world import World
from arachne.trainer import forward_plan, validation
from arachne.trainer.config import RunConfig
from arachne.trainer.validation import ValidationLoss, validation_loss
from tests.trainer.tiny_runs import changed, tiny_config, tiny_session, with_manifest

NUM_NOISES = 3


def measured(world: World, config: RunConfig, planner: str) -> tuple[ValidationLoss, set[int]]:
    """The loss, and the degrees of the launches."""
    degrees: set[int] = set()
    run_launches = validation.run_launches

    def noted(plan, **options):
        degrees.update(launch.degree for launch in plan.launches)
        run_launches(plan, **options)

    validation.run_launches = noted
    forward_plan.FALLBACK_PLANNER = planner
    with tiny_session(world, config) as (session, _):
        cluster = load_cluster(f"cpux{world.size}")
        first = validation_loss(session, cluster, 0)
        assert validation_loss(session, cluster, 7) == first, "the same noise every time"
        return first, degrees


@pytest.fixture(scope="module")
def config(clips, tmp_path_factory) -> RunConfig:
    """Five of six clips: neither two nor three ranks divide them."""
    run_dir = tmp_path_factory.mktemp("validation") / "run"
    config = tiny_config(clips, run_dir)
    return with_manifest(changed(config, "validation", every=1, noises=NUM_NOISES, clips=5))


@pytest.mark.distributed
def test_each_clip_counts_once_on_any_number_of_ranks_and_at_any_degree(config):
    alone, _ = run_ranks(1, measured, (config, "static_dp"))[0]
    for size, planner, degree in ((2, "static_dp", 1), (3, "static_dp", 1), (3, "static_sp", 3)):
        for found, degrees in run_ranks(size, measured, (config, planner)):
            assert degrees == {degree}
            assert found.loss == pytest.approx(alone.loss, rel=1e-9)
            assert found.by_level == pytest.approx(alone.by_level, rel=1e-9)
            assert found.by_bucket == pytest.approx(alone.by_bucket, rel=1e-9)


def test_the_parts_make_the_whole(config):
    found, _ = run_ranks(1, measured, (config, "static_dp"))[0]
    assert len(found.by_level) == NUM_NOISES
    assert len(set(found.by_level)) == NUM_NOISES
    assert fmean(found.by_level) == pytest.approx(found.loss, rel=1e-12)
    assert len(found.by_bucket) == 5, "each of the clips has a shape of its own"
    assert fmean(found.by_bucket.values()) == pytest.approx(found.loss, rel=1e-12)
    assert len(set(found.by_bucket.values())) == 5
