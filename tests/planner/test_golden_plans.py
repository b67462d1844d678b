"""Plans of fixed problems, kept as files: a changed plan must be a reviewed diff.

After an intended change set ARACHNE_WRITE_GOLDEN=1, run these tests, and review the new files.
"""

import os
from pathlib import Path

import pytest

from arachne.mapper.placement import place
from arachne.planner.problem import PlanningProblem
from arachne.planner.registry import PLANNERS
from tests.planner.problems import TableCosts, batch_of, cluster_of

GOLDEN = Path(__file__).parent.parent / "golden"
CLIPS = ("160x96x17", "96x64x1", "224x96x81", "96x64x33", "96x64x1", "160x96x33", "96x64x33")


@pytest.mark.parametrize("name", PLANNERS)
@pytest.mark.parametrize("num_gpus", [2, 6])
def test_plan_is_the_reviewed_one(name: str, num_gpus: int):
    problem = PlanningProblem(
        batch=batch_of(*CLIPS, step=3),
        num_gpus=num_gpus,
        degrees={2: (1, 2), 6: (1, 2, 3, 6)}[num_gpus],
        costs=TableCosts(second_per_token=0.0078125, launch_s_each=0.25),  # exact in binary
        stack_tokens=128,
        iterations=300,
    )
    text = place(PLANNERS[name](problem), cluster_of(num_gpus), step=3).to_json()
    file = GOLDEN / f"{name}_on_{num_gpus}_gpus.json"
    if os.environ.get("ARACHNE_WRITE_GOLDEN"):
        file.write_text(text, encoding="utf-8")

    assert text == file.read_text(encoding="utf-8"), (
        f"the plan in {file.name} changed; if intended, rerun with ARACHNE_WRITE_GOLDEN=1"
    )
