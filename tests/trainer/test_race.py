import pytest
import torch

from arachne.cost.cluster_files import load_cluster
from arachne.runtime.launcher import run_ranks
from arachne.runtime.world import World
from arachne.trainer import race as race_file
from arachne.trainer.config import RunConfig
from arachne.trainer.race import RaceResult, heterogeneous_steps, race
from tests.trainer.tiny_runs import tiny_config, tiny_session, with_manifest

PLANNERS = ("arachne", "static_dp", "static_sp")


def raced(world: World, config: RunConfig) -> tuple[RaceResult, list[tuple[int, str]], bool]:
    """A race, in which order its steps ran, and whether the model stayed finite."""
    order: list[tuple[int, str]] = []
    run_step = race_file.run_step

    def noted(session, chosen, plan, **options):
        order.append((plan.step, plan.planner))
        return run_step(session, chosen, plan, **options)

    race_file.run_step = noted
    with tiny_session(world, config) as (session, _heard):
        steps = heterogeneous_steps(session, first=0, count=3, span=3.0)
        for step in steps:
            tokens = [clip.num_tokens for clip in session.step_batch(step).batch.clips]
            assert max(tokens) >= 3 * min(tokens)
        assert heterogeneous_steps(session, first=0, count=1, span=100.0) == []
        done: list[int] = []
        result = race(
            session,
            load_cluster(f"cpux{world.size}"),
            PLANNERS,
            steps,
            lambda what, now, total: done.append(now),
        )
        assert done == [1, 2, 3]
        parameters = session.model.module.parameters()
        return result, order, all(bool(torch.isfinite(p).all()) for p in parameters)


@pytest.mark.distributed
def test_every_planner_runs_every_batch_and_takes_its_turn_at_going_first(clips, tmp_path):
    config = with_manifest(tiny_config(clips, tmp_path / "run"))
    results = run_ranks(2, raced, (config,))

    result, order, is_finite = results[0]
    assert is_finite
    assert len(result.steps) == 3
    assert len(order) == 9
    assert {planner for _, planner in order} == set(PLANNERS)
    assert [order[turn * 3][1] for turn in range(3)] == list(PLANNERS)
    for figures in (result.step_s, result.modelled_step_s, result.idle_ratio):
        assert set(figures) == set(PLANNERS)
        assert all(figure > 0.0 for figure in figures.values())
    assert all(ratio < 1.0 for ratio in result.idle_ratio.values())
    assert results[1][0] == result, "all ranks saw one trace"
    assert results[1][1] == order
