"""The one message that a user reads when a cascade fits nowhere."""

from arachne.core.cascade import Cascade
from arachne.core.errors import InfeasibleError
from arachne.core.units import bytes_text, count_text
from arachne.cost.fitting import fitting_text, misfit_text
from arachne.cost.model import CostModel
from arachne.cost.roomier import roomier_text, widest_degree
from arachne.planner.problem import PlanningProblem

_ENCODER_ADVICE = (
    "encode before step 1 (data.encode=before; leave out --encode and --fill), or use GPUs with "
    "more memory"
)

_OTHER_PLANNER = "set planner.name=arachne, which may use more GPUs, or use GPUs with more memory"


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
    advice = _advice(problem, cascade, gpus, planner) if is_training else _ENCODER_ADVICE
    advice = f"{fitting}; or {advice}" if fitting else advice
    return InfeasibleError(
        f"{what} needs {bytes_text(needed_bytes)}{module} on each of "
        f"{count_text(len(gpus), 'GPU')}, but {bytes_text(costs.memory_bytes)} may be used{items}; "
        f"{advice}"
    )


def _advice(
    problem: PlanningProblem, cascade: Cascade, gpus: tuple[int, ...], planner: str | None
) -> str:
    """What would help: a setting only where it is what holds the launch back."""
    costs = problem.costs
    lowered = problem.shape_settings
    if cascade.num_clips > 1:
        lowered = f"planner.stack_tokens, {lowered}"
    smaller = f"lower {lowered}"
    if planner and len(gpus) < problem.degrees[-1]:  # it may not use more, whatever is allowed
        return f"{smaller}, or {_OTHER_PLANNER}"
    if isinstance(costs, CostModel):
        widest = problem.degrees[-1]
        max_degree = problem.max_degree or (widest if widest < widest_degree(costs) else 0)
        return roomier_text(costs, cascade, gpus, smaller, max_degree=max_degree)
    is_limited = problem.degrees[-1] < problem.num_gpus
    raising = "raise planner.max_degree, or " if is_limited else ""
    return f"{raising}{smaller}, or use more GPUs or GPUs with more memory"
