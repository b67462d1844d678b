import pytest

from arachne.core.errors import InfeasibleError
from arachne.planner.lower_bound import lower_bound_s
from arachne.planner.problem import PlanningProblem
from tests.planner.problems import TableCosts, batch_of


def bound_s(*buckets: str, costs: TableCosts, stack_tokens: int = 0, num_gpus: int = 2) -> float:
    return lower_bound_s(
        PlanningProblem(
            batch=batch_of(*buckets),
            num_gpus=num_gpus,
            degrees=(1, 2),
            costs=costs,
            stack_tokens=stack_tokens,
        )
    )


def test_no_clips_take_no_time():
    assert bound_s(costs=TableCosts()) == 0.0


def test_area_over_gpus_when_work_divides_freely():
    # 96x64x1 is 24 tokens: three of them are 72 GPU-seconds on two GPUs.
    assert bound_s(*["96x64x1"] * 3, costs=TableCosts()) == pytest.approx(36.0)


def test_a_long_clip_counts_at_its_best_degree():
    # 24 / 2 + 100 on both GPUs is shorter than 24 + 100 on one.
    assert bound_s("96x64x1", costs=TableCosts(launch_s_each=100.0)) == pytest.approx(112.0)


def test_stacking_may_save_launches_and_the_bound_counts_it():
    costs = TableCosts(launch_s_each=10.0)
    alone = bound_s(*["96x64x1"] * 8, costs=costs, stack_tokens=0)
    stacked = bound_s(*["96x64x1"] * 8, costs=costs, stack_tokens=96)

    assert alone == pytest.approx((8 * 24 + 8 * 10) / 2)
    assert stacked == pytest.approx(106.0)  # four clips in a stack take 106 s, 2 stacks on 2 GPUs


def test_a_limit_on_time_forces_costly_degrees():
    # One clip of 1,764 tokens and nothing else: it needs both GPUs to end in half the time.
    assert bound_s("224x96x81", costs=TableCosts()) == pytest.approx(882.0)


def test_a_clip_that_fits_nowhere_is_infeasible():
    with pytest.raises(InfeasibleError, match=r"needs 882 GB on each of 2 GPUs"):
        bound_s("224x96x81", costs=TableCosts(max_tokens_per_gpu=100))
