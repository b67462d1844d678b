"""Laws that every model of another system keeps, on random batches and worlds."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arachne.core.batch import Batch
from arachne.core.errors import InfeasibleError
from arachne.core.plan_rules import check_placed_plan
from arachne.mapper.placement import place
from arachne.planner import flexsp
from arachne.planner.lower_bound import lower_bound_s
from arachne.planner.memory_cap import num_cap_violations
from arachne.planner.registry import PACKING_PEERS, PEERS, PLANNERS
from arachne.planner.static_degree_longest_first import plan_static_degree_longest_first
from arachne.simulator.simulate import simulate
from tests.planner.problems import (
    BUCKETS,
    batch_of,
    batches,
    cluster_of,
    problem_of,
    stack_limits,
)

GPUS = st.sampled_from([1, 6, 7, 12, 20, 24])
CAP_KEEPERS = [name for name in PEERS if name != "knapformer"]


@pytest.fixture(autouse=True)
def _short_solver_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flexsp, "SOLVER_LIMIT_S", 0.4)


@pytest.mark.parametrize("name", PEERS)
@given(batch=batches, num_gpus=GPUS, stack_tokens=stack_limits)
@settings(max_examples=12, deadline=None)
def test_every_plan_trains_each_clip_once_and_runs_as_planned(
    name: str, batch: Batch, num_gpus: int, stack_tokens: int
):
    problem = problem_of(batch, num_gpus, stack_tokens=stack_tokens)

    plan = PEERS[name](problem)

    assert plan.planner == name
    placed = place(plan, cluster_of(num_gpus), 0)
    check_placed_plan(placed, batch, num_gpus)
    assert [launch.phase for launch in placed.launches] == sorted(
        launch.phase for launch in plan.launches
    )
    assert simulate(placed).iteration_s == plan.makespan_s
    for launch in plan.launches:
        assert launch.duration_s == problem.duration_s(launch.cascade, launch.gpus)
        assert launch.cascade.num_clips == 1 or (
            launch.cascade.num_clips * launch.cascade.num_tokens <= stack_tokens
        )


@pytest.mark.parametrize("name", CAP_KEEPERS)
@given(batch=batches, num_gpus=GPUS, memory_bytes=st.sampled_from([6e7, 8e7, 1.2e8, 2e8]))
@settings(max_examples=12, deadline=None)
def test_tight_memory_gives_a_plan_that_fits_or_one_message(
    name: str, batch: Batch, num_gpus: int, memory_bytes: float
):
    problem = problem_of(batch, num_gpus, memory_bytes=memory_bytes)
    try:
        plan = PEERS[name](problem)
    except InfeasibleError:
        with pytest.raises(InfeasibleError, match=rf"planner '{name}': clip .* needs"):
            PEERS[name](problem)
        return

    check_placed_plan(place(plan, cluster_of(num_gpus), 0), batch, num_gpus)
    assert num_cap_violations(plan, problem, is_packed=False) == 0
    assert num_cap_violations(plan, problem, is_packed=name in PACKING_PEERS) == 0


@pytest.mark.parametrize("name", [name for name in PEERS if name != "fcp"])
@given(batch=batches, num_gpus=GPUS, stack_tokens=stack_limits)
@settings(max_examples=10, deadline=None)
def test_no_peer_beats_the_bound_of_the_same_degrees_and_stacking(
    name: str, batch: Batch, num_gpus: int, stack_tokens: int
):
    problem = problem_of(batch, num_gpus, stack_tokens=stack_tokens)

    assert lower_bound_s(problem) <= PEERS[name](problem).makespan_s


@given(batch=batches, num_gpus=GPUS)
@settings(max_examples=40, deadline=None)
def test_barriers_and_the_least_degree_never_make_a_static_step_shorter(
    batch: Batch, num_gpus: int
):
    problem = problem_of(batch, num_gpus)
    made_s = {name: PEERS[name](problem).makespan_s for name in PEERS if "lockstep" in name}

    # Sums of the same durations in another order may differ in the last digit.
    rounding = 1.0 - 1e-12
    assert made_s["static_lockstep_zero1"] * rounding <= made_s["static_lockstep_zero3"]
    for form in ("zero1", "zero3"):
        best, least = f"static_lockstep_{form}", f"static_lockstep_{form}_least"
        assert made_s[best] <= made_s[least]


@given(batch=batches, num_gpus=GPUS)
@settings(max_examples=30, deadline=None)
def test_hotspa_is_never_longer_than_one_degree_for_all(batch: Batch, num_gpus: int):
    problem = problem_of(batch, num_gpus)

    one_degree_s = plan_static_degree_longest_first(problem).makespan_s

    assert PEERS["hotspa"](problem).makespan_s <= one_degree_s * (1.0 + 1e-12)


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("num_gpus", [1, 2, 6, 7, 12, 20, 24])
def test_one_clip_is_planned_on_any_world(name: str, num_gpus: int):
    batch = batch_of("96x64x33")

    plan = PEERS[name](problem_of(batch, num_gpus))

    assert len(plan.launches) == 1
    check_placed_plan(place(plan, cluster_of(num_gpus), 0), batch, num_gpus)


@pytest.mark.parametrize("name", PEERS)
def test_an_empty_batch_gives_an_empty_plan(name: str):
    assert PEERS[name](problem_of(batch_of(), 4)).launches == ()


@pytest.mark.parametrize("name", CAP_KEEPERS)
def test_a_clip_that_fits_nowhere_is_named(name: str):
    batch = batch_of("96x64x1", "224x96x81")

    with pytest.raises(InfeasibleError, match=rf"planner '{name}': clip '1.mp4' of 224x96x81"):
        PEERS[name](problem_of(batch, 2, memory_bytes=1.2e8))


CHEAP_PEERS = [name for name in PEERS if name not in {"flexsp", "fcp"}]


@pytest.mark.parametrize("seed", range(6))
def test_no_cheap_peer_with_the_same_degrees_and_stacking_is_shorter_than_arachne(seed: int):
    rng = Random(seed)
    num_gpus = rng.choice([2, 6, 7, 8, 12])
    batch = batch_of(*rng.choices(BUCKETS, k=rng.choice([2, 4]) * num_gpus))
    problem = problem_of(batch, num_gpus, iterations=1000)

    makespan_s = PLANNERS["arachne"](problem).makespan_s

    for name in CHEAP_PEERS:
        assert makespan_s <= PEERS[name](problem).makespan_s * (1.0 + 1e-9), name
