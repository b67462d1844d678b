"""Runs whose cost model is wrong at the start."""

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import pytest

from arachne.core.cluster import Cluster
from arachne.core.strict_json import to_json
from arachne.cost.cluster_files import load_cluster
from arachne.runtime.launcher import run_ranks
from arachne.runtime.world import World
from arachne.trainer import cluster_choice
from arachne.trainer.checkpoint_reader import CheckpointReader, newest
from arachne.trainer.config import RunConfig
from arachne.trainer.loop import train
from tests.trainer.tiny_runs import changed, tiny_config, tiny_session, with_manifest

WRONG = 1000.0
EVERY = 4


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one rank saw: the error of each step's launches, and what came of the cluster."""

    errors: list[float]
    said: list[str]
    cluster: Cluster


def wrong_cluster(name: str) -> Cluster:
    """The named cluster, slower by orders of magnitude than any machine that runs this."""
    cluster = load_cluster(name)
    device = cluster.device
    slow = replace(
        device,
        matmul_flops_per_s=device.matmul_flops_per_s / WRONG,
        attention_flops_per_s=device.attention_flops_per_s / WRONG,
        layer_s=device.layer_s * WRONG,
        launch_s=device.launch_s * WRONG,
    )
    return replace(cluster, device=slow)


def trained_from_a_wrong_start(world: World, config: RunConfig) -> Run:
    cluster_choice.load_cluster = wrong_cluster
    with tiny_session(world, config) as (session, heard):
        finished = train(session, heard.listener, resume=False)
        errors = [report.launch_error for report in heard.reports]
    assert None not in errors
    return Run(errors=[error or 0.0 for error in errors], said=heard.said, cluster=finished.cluster)


def a_run(clips: Path, folder: Path, every: int) -> RunConfig:
    config = tiny_config(clips, folder / "run", steps=4 * EVERY, dtype="float32")
    return with_manifest(changed(config, "planner", recalibrate_every=every))


@pytest.mark.distributed
def test_a_wrong_start_is_corrected_for_the_plans_of_all_ranks(clips, tmp_path):
    config = a_run(clips, tmp_path, EVERY)

    runs = run_ranks(2, trained_from_a_wrong_start, (config,))

    assert runs[0].errors == runs[1].errors
    # The next step's plan is known, and the one after it is being made: both are of the old model.
    before, after = runs[0].errors[: EVERY + 1], runs[0].errors[EVERY + 2 :]
    assert min(before) > 50.0
    assert median(after) < 5.0, "however busy the machine is that runs this"
    assert sum("cost model corrected" in line for line in runs[0].said) >= 1
    assert runs[0].cluster == runs[1].cluster != wrong_cluster("cpux2")
    state = CheckpointReader(newest(Path(config.run.dir), on_skip=print)).state
    assert state.cluster_json == to_json(runs[0].cluster)


@pytest.mark.distributed
def test_a_frozen_model_stays_as_it_was(clips, tmp_path):
    runs = run_ranks(2, trained_from_a_wrong_start, (a_run(clips, tmp_path, 0),))

    assert runs[0].cluster == runs[1].cluster == wrong_cluster("cpux2")
    assert min(runs[0].errors) > 50.0
    assert not any("corrected" in line for line in runs[0].said)
