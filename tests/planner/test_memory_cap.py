"""What counts as too much for a GPU's memory."""

import pytest

from arachne.core.cascade import Module
from arachne.core.plan import Launch, Plan
from arachne.planner.memory_cap import num_cap_violations
from arachne.planner.problem import PlanningProblem
from arachne.planner.stacking import cascade_of
from tests.planner.problems import TableCosts, batch_of

CLIP = "64x32x9"
"""24 tokens; a GB each, of the 80 that a GPU has."""


def plan_of(num_trained: int, num_encoded: int) -> tuple[Plan, PlanningProblem]:
    """Clips that one GPU encodes and trains in one phase."""
    batch = batch_of(*[CLIP] * num_trained)
    modules: list[Module] = ["dit"] * num_trained + ["text"] * num_encoded
    slots = [*range(num_trained), *range(num_encoded)]
    launches = tuple(
        Launch(
            cascade=cascade_of(batch.clips, [slot], module),
            gpus=(0,),
            start_s=float(index),
            duration_s=1.0,
        )
        for index, (module, slot) in enumerate(zip(modules, slots, strict=True))
    )
    problem = PlanningProblem(
        batch=batch, num_gpus=1, degrees=(1,), costs=TableCosts(max_tokens_per_gpu=80)
    )
    return Plan(planner="test", num_gpus=1, launches=launches), problem


@pytest.mark.parametrize(("num_trained", "violations"), [(3, 0), (4, 1)])
def test_all_clips_of_a_pack_are_in_memory_at_once(num_trained: int, violations: int):
    plan, problem = plan_of(num_trained, 0)
    assert num_cap_violations(plan, problem, is_packed=True) == violations
    assert num_cap_violations(plan, problem, is_packed=False) == 0


def test_encoders_beside_a_pack_run_alone():
    plan, problem = plan_of(3, 3)
    assert num_cap_violations(plan, problem, is_packed=True) == 0
