"""What `arachne compare` says of a pipeline over layers, beside planners of cascades."""

from collections.abc import Sequence
from statistics import mean
from typing import TYPE_CHECKING

from arachne.core.errors import InfeasibleError
from arachne.planner.gpipe import NAME, gpipe_steps

if TYPE_CHECKING:
    from arachne.reporting.pipeline_figures import PipelineFigures
    from arachne.reporting.planner_figures import PlannerFigures
    from arachne.trainer.planning import PlanRequest


def compared_pipeline(
    requests: "Sequence[PlanRequest]", figures: "Sequence[PlannerFigures]"
) -> "PipelineFigures":
    """GPipe on the batches of `requests`, beside the planners' figures on the same ones."""
    from arachne.reporting.comparison import REFERENCE
    from arachne.reporting.pipeline_figures import PipelineFigures

    if any(request.problem.has_encoders for request in requests):
        failure = "it has no place for encoders; compare it without --encode and --fill"
        return PipelineFigures(name=NAME, failure=failure)
    batches = [request.batch for request in requests]
    try:
        steps = gpipe_steps(batches, requests[0].costs, requests[0].stack_tokens)
    except InfeasibleError as error:
        return PipelineFigures(name=NAME, failure=str(error).removeprefix(f"planner {NAME!r}: "))
    step_s = mean(step.step_s for step in steps)
    ours_s = next((row.step_s for row in figures if row.name == REFERENCE), None)
    return PipelineFigures(
        name=NAME,
        step_s=step_s,
        ratio=step_s / ours_s if ours_s else None,
        num_stages=steps[0].num_stages,
        bubble_ratio=mean(step.bubble_ratio for step in steps),
        ideal_bubble_ratio=mean(step.ideal_bubble_ratio for step in steps),
        recomputed_steps=sum(step.is_recomputed for step in steps),
    )
