"""What makes a placed plan valid; checked before it runs, and by every planner's tests."""

from collections import Counter

from arachne.core.batch import Batch
from arachne.core.errors import InfeasibleError
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan

_SLACK_S = 1e-9


def check_placed_plan(plan: PlacedPlan, batch: Batch, world_size: int) -> None:
    """Refuse a plan that would train a clip twice or never, or put two launches on a rank at once.

    Raises:
        InfeasibleError: Names the first rule that is broken.
    """
    problem = (
        _wrong_frame(plan, batch, world_size)  # each rule leans on those before it
        or _wrong_coverage(plan, batch)
        or _wrong_launch(plan, batch)
        or _wrong_order(plan)
        or _overlap(plan)
        or _broken_barrier(plan)
    )
    if problem:
        raise InfeasibleError(f"the plan of step {batch.step} by {plan.planner!r} {problem}")


def _wrong_frame(plan: PlacedPlan, batch: Batch, world_size: int) -> str:
    if plan.step != batch.step:
        return f"is for step {plan.step}"
    if plan.world_size != world_size:
        return f"is for {plan.world_size} ranks, not {world_size}"
    return ""


def _wrong_coverage(plan: PlacedPlan, batch: Batch) -> str:
    planned = Counter(slot for launch in plan.launches for slot in launch.cascade.slots)
    for slot, clip in enumerate(batch.clips):
        if planned[slot] != 1:
            return f"trains clip {clip.name!r} {planned[slot]} times, not once"
    strange = set(planned) - set(range(len(batch.clips)))
    return f"names slots {sorted(strange)} that the batch does not have" if strange else ""


def _wrong_launch(plan: PlacedPlan, batch: Batch) -> str:
    for index, launch in enumerate(plan.launches):
        ranks = launch.ranks
        if not ranks or list(ranks) != sorted(set(ranks)):
            return f"has a launch {index} whose ranks {ranks} are not ascending"
        if ranks[0] < 0 or ranks[-1] >= plan.world_size:
            return f"has a launch {index} on ranks {ranks} outside 0…{plan.world_size - 1}"
        for slot in launch.cascade.slots:
            if batch.clips[slot].bucket != launch.cascade.bucket:
                return f"stacks clip {batch.clips[slot].name!r} with clips of another shape"
        if launch.start_s < 0 or launch.duration_s < 0:
            return f"has a launch {index} with a negative time"
        if launch.phase < 0:
            return f"has a launch {index} with a negative phase"
    return ""


def _order_key(launch: PlacedLaunch) -> tuple[float, tuple[int, ...]]:
    return launch.start_s, launch.ranks


def _wrong_order(plan: PlacedPlan) -> str:
    keys = [_order_key(launch) for launch in plan.launches]
    return "" if keys == sorted(keys) else "does not list its launches in order of start"


def _broken_barrier(plan: PlacedPlan) -> str:
    phase, barrier_s, latest_s = 0, 0.0, 0.0
    for index, launch in enumerate(plan.launches):
        if launch.phase < phase:
            return f"lists launch {index} of phase {launch.phase} after one of phase {phase}"
        if launch.phase > phase:
            phase, barrier_s = launch.phase, latest_s
        if launch.start_s < barrier_s - _SLACK_S * max(1.0, barrier_s):
            return f"starts launch {index} of phase {phase} before the phase before it has ended"
        latest_s = max(latest_s, launch.end_s)
    return ""


def _overlap(plan: PlacedPlan) -> str:
    free_s = [0.0] * plan.world_size
    for index, launch in enumerate(plan.launches):
        for rank in launch.ranks:
            if launch.start_s < free_s[rank] - _SLACK_S * max(1.0, free_s[rank]):
                return f"starts launch {index} on rank {rank} before that rank is free"
            free_s[rank] = launch.end_s
    return ""
