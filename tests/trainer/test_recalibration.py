"""Runs whose cost model is wrong at the start."""

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest

from arachne.cli.training import metrics_of
from arachne.cli.training_display import figures_text
from arachne.core.cluster import Cluster
from arachne.core.placed_plan import PlacedPlan
from arachne.core.strict_json import to_json
from arachne.cost.calibration import predicted_s
from arachne.cost.cluster_files import load_cluster
from arachne.cost.measured_launch import MeasuredLaunch
from arachne.reporting.run_files import Metrics, StepMetrics
from arachne.reporting.slow_ranks import slow_rank_notes
from arachne.runtime.launcher import run_ranks
from arachne.runtime.world import World
from arachne.trainer import cluster_choice, loop
from arachne.trainer.checkpoint_reader import CheckpointReader, newest
from arachne.trainer.config import RunConfig
from arachne.trainer.loop import train
from arachne.trainer.loss_means import LossMeans
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


SLOWNESS = 2.5


def trained_beside_a_slow_rank(
    world: World, config: RunConfig
) -> tuple[list[StepMetrics], list[PlacedPlan], list[str]]:
    """Rank 1 takes longer than predicted, rank 0 just as long."""

    def measured(session: Any, plan: PlacedPlan, *_: Any) -> tuple[MeasuredLaunch, ...]:
        costs = session.costs(load_cluster(f"cpux{world.size}"))
        found: list[MeasuredLaunch] = []
        for launch in plan.launches:
            compute_s, total_s = predicted_s(costs, launch)
            seconds = tuple(compute_s * (SLOWNESS if r == 1 else 1.0) for r in launch.ranks)
            found.append(
                MeasuredLaunch(
                    launch=launch, rank_compute_s=seconds, total_s=total_s + max(seconds)
                )
            )
        return tuple(found)

    loop.measured_launches = measured  # pyright: ignore[reportPrivateLocalImportUsage]
    with tiny_session(world, config) as (session, heard):
        train(session, heard.listener, resume=False)
    rows = [metrics_of(report, means=LossMeans(), time_left_s=0.0) for report in heard.reports]
    return rows, [report.plan for report in heard.reports], heard.said


def share_of_rank(plan: PlacedPlan, rank: int) -> float:
    """Of a step's tokens."""
    tokens = [
        (each.cascade.num_tokens * len(each.cascade.slots) / each.degree, each.ranks)
        for each in plan.launches
    ]
    mine = sum(number for number, ranks in tokens if rank in ranks)
    return mine / sum(number * len(ranks) for number, ranks in tokens)


@pytest.mark.distributed
def test_a_slow_rank_is_scored_shown_and_given_less_to_do(clips, tmp_path):
    config = tiny_config(clips, tmp_path / "run", steps=10 * EVERY, batch=6, dtype="float32")
    config = changed(with_manifest(config), "planner", recalibrate_every=EVERY, stack_tokens=0)
    rows, plans, said = run_ranks(2, trained_beside_a_slow_rank, (config,))[0]
    last = rows[-1]
    assert last.rank_scores is not None
    assert last.rank_scores["1"] == pytest.approx(SLOWNESS, rel=0.1)
    assert last.rank_speeds == pytest.approx((1.0, 1 / SLOWNESS), rel=0.1)
    shown = f"rank 1 at {100 * last.rank_speeds[1]:.0f} % speed"
    assert shown in figures_text(last, is_short=True)
    assert any("rank 1 takes 2." in each and "plans allow for it" in each for each in said)
    before, after = plans[: 2 * EVERY], plans[-4 * EVERY :]
    share = [mean(share_of_rank(plan, 1) for plan in part) for part in (before, after)]
    assert share[1] < 0.8 * share[0]
    (note,) = slow_rank_notes(Metrics(train=tuple(rows)))
    assert note.startswith("rank 1 ran slower than predicted: plans allowed for it from step ")
    assert note.endswith(f"at {100 * last.rank_speeds[1]:.0f} % of the fastest rank's speed")
    assert rows[0].rank_speeds is None
    assert not slow_rank_notes(Metrics(train=tuple(rows[:3])))
