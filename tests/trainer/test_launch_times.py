"""What ranks tell each other of their launches."""

import time
from typing import Any

import pytest

from arachne.cost.measured_launch import MeasuredLaunch
from arachne.runtime import collectives
from arachne.runtime.executor import run_launches
from arachne.runtime.launcher import run_ranks
from arachne.runtime.world import World
from arachne.trainer.config import RunConfig
from arachne.trainer.launch_times import measured_launches
from tests.trainer.tiny_runs import plan_of, step_batch, tiny_config, tiny_session, with_manifest

WORK_S, LATE_S = 0.1, 1.0
LAUNCHES = [((0,), (0, 1)), ((1,), (0,)), ((2,), (0,)), ((3,), (1,))]


@pytest.fixture
def config(clips, tmp_path) -> RunConfig:
    return with_manifest(tiny_config(clips, tmp_path / "run"))


def measured_on(
    world: World, config: RunConfig, kept: tuple[bool, ...]
) -> tuple[tuple[MeasuredLaunch, ...], int]:
    """Four launches, for the first of which the last rank is late; and how many events are left."""
    with tiny_session(world, config) as (session, _):
        plan = plan_of(step_batch(session, (0, 1, 2, 3)).batch, 2, LAUNCHES)

        def work(launch: Any) -> None:
            time.sleep(WORK_S)
            collectives.all_reduce_sum(session.null_text.clone(), session.groups.of(launch.ranks))

        time.sleep(LATE_S * world.rank)
        run_launches(
            plan, rank=world.rank, groups=session.groups, recorder=session.recorder, work=work
        )
        log = session.recorder.finish(step=0, planner="")
        found = measured_launches(session, plan, log, kept)
        return found, len(session.recorder.finish(step=0, planner="").events)


@pytest.mark.distributed
def test_all_ranks_learn_the_same_and_waiting_for_a_late_rank_is_not_counted(config):
    (found, num_events), (again, _) = run_ranks(2, measured_on, (config, ()))

    assert found == again
    assert num_events == 0, "the exchange belongs to no step"
    assert [(each.launch.cascade.slots, each.launch.ranks) for each in found] == LAUNCHES
    for each in found:
        assert all(seconds >= WORK_S for seconds in each.rank_compute_s)
        assert min(each.rank_compute_s) - 1e-3 <= each.total_s < LATE_S
    assert found[1].total_s == pytest.approx(found[1].rank_compute_s[0], abs=0.05)


@pytest.mark.distributed
def test_launches_that_lost_a_clip_are_left_out(config):
    (found, _), _ = run_ranks(2, measured_on, (config, (True, True, False, True)))

    assert [each.launch.cascade.slots for each in found] == [(0,), (1,), (3,)]


def test_a_plan_without_launches_has_no_times(config):
    assert run_ranks(1, _nothing, (config,)) == [()]


def _nothing(world: World, config: RunConfig) -> tuple[MeasuredLaunch, ...]:
    with tiny_session(world, config) as (session, _):
        plan = plan_of(step_batch(session, (0,)).batch, 1, [((0,), (0,))])
        empty = type(plan)(step=0, planner="", world_size=1, launches=())
        return measured_launches(session, empty, session.recorder.finish(step=0, planner=""))
