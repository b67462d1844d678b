from dataclasses import dataclass

from arachne.core.cascade import Cascade
from arachne.core.plan_rules import check_placed_plan
from arachne.mapper.placement import place
from arachne.planner.problem import SHORTEST_S, PlanningProblem
from arachne.planner.schedule import scheduled, scheduled_in_phases
from arachne.planner.stacking import cascade_of
from tests.planner.problems import TableCosts, batch_of, cluster_of


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeImages(TableCosts):
    """Images take no time at all, videos a second a token."""

    def launch_s(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        return float(cascade.num_tokens) if cascade.bucket.frames > 1 else 0.0


def test_a_launch_that_takes_no_time_keeps_its_place_before_the_next():
    # Both would start at 0 on GPU 0, and (0,) sorts before (0, 1).
    batch = batch_of("96x64x1", "96x64x33")
    problem = PlanningProblem(batch=batch, num_gpus=2, degrees=(1, 2), costs=FreeImages())
    image, video = (cascade_of(batch.clips, (slot,)) for slot in (0, 1))

    plan = scheduled(problem, "test", [(image, (0, 1)), (video, (0,))])

    assert [launch.cascade.slots for launch in plan.launches] == [(0,), (1,)]
    assert plan.launches[0].duration_s == SHORTEST_S
    check_placed_plan(place(plan, cluster_of(2), 0), batch, 2)


def test_each_launch_starts_when_its_last_gpu_is_free():
    batch = batch_of("96x64x1", "96x64x33", "96x64x1")
    problem = PlanningProblem(batch=batch, num_gpus=2, degrees=(1, 2), costs=TableCosts())
    first, second, both = (cascade_of(batch.clips, (slot,)) for slot in range(3))

    plan = scheduled(problem, "test", [(first, (0,)), (second, (1,)), (both, (0, 1))])

    assert [launch.start_s for launch in plan.launches] == [0.0, 0.0, 216.0]
    assert plan.makespan_s == 228.0


def test_a_barrier_holds_back_gpus_that_were_free_long_ago():
    batch = batch_of("96x64x1", "96x64x33", "96x64x1")
    problem = PlanningProblem(batch=batch, num_gpus=2, degrees=(1, 2), costs=TableCosts())
    first, second, third = (cascade_of(batch.clips, (slot,)) for slot in range(3))

    plan = scheduled_in_phases(problem, "test", [[(first, (0,)), (second, (1,))], [(third, (0,))]])

    assert [(launch.start_s, launch.phase) for launch in plan.launches] == [
        (0.0, 0),
        (0.0, 0),
        (216.0, 1),
    ]
    check_placed_plan(place(plan, cluster_of(2), 0), batch, 2)
