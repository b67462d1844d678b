"""The one message that a user reads when a cascade fits nowhere."""

from arachne.core.cascade import Cascade
from arachne.core.errors import InfeasibleError
from arachne.core.units import bytes_text, count_text
from arachne.planner.problem import PlanningProblem


def does_not_fit(
    problem: PlanningProblem, cascade: Cascade, gpus: tuple[int, ...], *, planner: str | None = None
) -> InfeasibleError:
    """Says which clip needs how much memory on `gpus`, the largest group that was tried.

    `planner` names a planner that gave up although another might not.
    """
    clip = problem.batch.clips[cascade.slots[0]]
    needed = bytes_text(problem.costs.launch_bytes(cascade, gpus))
    found = bytes_text(problem.costs.memory_bytes)
    stack = f" (stacked, {cascade.num_clips} of this shape)" if cascade.num_clips > 1 else ""
    who = f"planner {planner!r}: " if planner else ""
    advice = (
        "raise planner.max_degree, lower planner.stack_tokens, data.resolution or "
        "data.frame_buckets, or use more GPUs or GPUs with more memory"
    )
    return InfeasibleError(
        f"{who}clip {clip.name!r} of {clip.bucket}, {clip.num_tokens:,} tokens"
        f"{stack}, needs {needed} on each of {count_text(len(gpus), 'GPU')}, but {found} may be "
        f"used; {advice}"
    )
