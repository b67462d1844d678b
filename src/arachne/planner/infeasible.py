"""The one message that a user reads when a cascade fits nowhere."""

from arachne.core.blocks import allowed_degrees
from arachne.core.cascade import Cascade
from arachne.core.errors import InfeasibleError
from arachne.core.units import bytes_text, count_text
from arachne.cost.fitting import fitting_text, has_no_ring, misfit_text, roomier_text
from arachne.cost.model import CostModel
from arachne.planner.problem import PlanningProblem

_ENCODER_ADVICE = (
    "encode before step 1 (data.encode=before; leave out --encode and --fill), or use GPUs with "
    "more memory"
)


def does_not_fit(
    problem: PlanningProblem, cascade: Cascade, gpus: tuple[int, ...], *, planner: str | None = None
) -> InfeasibleError:
    """Says which clip needs how much memory on `gpus`, the last group that was tried.

    With a cost model also for what, and what would make it fit. `planner` names a planner that gave
    up although another might not.
    """
    costs = problem.costs
    clip = problem.clip(cascade)
    stack = f" (stacked, {cascade.num_clips} of this shape)" if cascade.num_clips > 1 else ""
    who = f"planner {planner!r}: " if planner else ""
    of_step = " of the next step" if cascade.steps_ahead else ""
    what = f"{who}clip {clip.name!r}{of_step} of {clip.bucket}, {clip.num_tokens:,} tokens{stack},"
    needed_bytes = costs.launch_bytes(cascade, gpus)
    items = fitting = ""
    if isinstance(costs, CostModel):
        if needed_bytes <= costs.memory_bytes:
            return InfeasibleError(f"{what} {misfit_text(costs, cascade, gpus)}")
        items = f" ({costs.memory(cascade, gpus).text})"
        fitting = fitting_text(costs, cascade, gpus)
    module = "" if cascade.module == "dit" else f" for its {cascade.module} encoder"
    is_training = cascade.module == "dit"
    advice = _advice(problem, cascade, gpus) if is_training else _ENCODER_ADVICE
    advice = f"{fitting}; or {advice}" if fitting else advice
    return InfeasibleError(
        f"{what} needs {bytes_text(needed_bytes)}{module} on each of "
        f"{count_text(len(gpus), 'GPU')}, but {bytes_text(costs.memory_bytes)} may be used{items}; "
        f"{advice}"
    )


def _advice(problem: PlanningProblem, cascade: Cascade, gpus: tuple[int, ...]) -> str:
    """What would help: a setting only where it is what holds the launch back."""
    costs = problem.costs
    raising = "raise planner.max_degree, " if _would_fit_on_more(problem, cascade, gpus) else ""
    lowered = problem.shape_settings
    if cascade.num_clips > 1:
        lowered = f"planner.stack_tokens, {lowered}"
    smaller = f"{raising}lower {lowered}"
    if isinstance(costs, CostModel):
        return roomier_text(costs, cascade, gpus, smaller)
    return f"{smaller}, or use more GPUs or GPUs with more memory"


def _would_fit_on_more(problem: PlanningProblem, cascade: Cascade, gpus: tuple[int, ...]) -> bool:
    """Whether a larger `planner.max_degree` would help, or may, where costs do not tell."""
    most, costs = _most_degree(problem), problem.costs
    if most <= max(problem.degrees) or not isinstance(costs, CostModel):
        return most > max(problem.degrees)
    mode = costs.mode(cascade, gpus)
    return costs.memory_in(mode, cascade, most).total <= costs.memory_bytes


def _most_degree(problem: PlanningProblem) -> int:
    """The largest degree that `planner.max_degree` could allow."""
    costs, most = problem.costs, problem.num_gpus
    if isinstance(costs, CostModel) and has_no_ring(costs):
        most = min(most, costs.model.num_heads)
    return allowed_degrees(problem.num_gpus, most)[-1]
