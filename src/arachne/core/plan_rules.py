"""What makes a placed plan valid; checked before it runs, and by every planner's tests."""

from collections import Counter
from collections.abc import Sequence
from math import inf

from arachne.core.batch import Batch
from arachne.core.cascade import Encoder, Module
from arachne.core.errors import InfeasibleError
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan

_SLACK_S = 1e-9

_VERBS: dict[Module, str] = {
    "text": "encodes the caption of",
    "vae": "encodes the video of",
    "dit": "trains",
}


def check_placed_plan(
    plan: PlacedPlan, batch: Batch, world_size: int, *, next_batch: Batch | None = None
) -> None:
    """Refuse a plan that would train a clip twice or never, put two launches on a rank at once, or
    train a clip before it is encoded.

    `next_batch` is the batch whose encoders fill this step; without one, none may.

    Raises:
        InfeasibleError: Names the first rule that is broken.
    """
    batches = (batch,) if next_batch is None else (batch, next_batch)
    problem = (
        _wrong_frame(plan, batch, world_size)  # each rule leans on those before it
        or _wrong_coverage(plan, batches)
        or _wrong_launch(plan, batches)
        or _wrong_order(plan)
        or _overlap(plan)
        or _broken_barrier(plan)
        or _early_training(plan, batch)
    )
    if problem:
        raise InfeasibleError(f"the plan of step {batch.step} by {plan.planner!r} {problem}")


def _wrong_frame(plan: PlacedPlan, batch: Batch, world_size: int) -> str:
    if plan.step != batch.step:
        return f"is for step {plan.step}"
    if plan.world_size != world_size:
        return f"is for {plan.world_size} ranks, not {world_size}"
    return ""


def _wrong_coverage(plan: PlacedPlan, batches: Sequence[Batch]) -> str:
    planned: Counter[tuple[int, Module, int]] = Counter(
        (launch.cascade.steps_ahead, launch.cascade.module, slot)
        for launch in plan.launches
        for slot in launch.cascade.slots
    )
    for steps_ahead, batch in enumerate(batches):
        for slot, clip in enumerate(batch.clips):
            modules: tuple[Module, ...] = (*clip.to_encode, *(() if steps_ahead else ("dit",)))
            for module in modules:
                count = planned.pop((steps_ahead, module, slot), 0)
                if count != 1:
                    return f"{_VERBS[module]} clip {clip.name!r} {count} times, not once"
    if planned:
        steps_ahead, module, slot = min(planned)
        of_batch = " of the next step" if steps_ahead else ""
        return f"{_VERBS[module]} slot {slot}{of_batch}, which the batch has no such work for"
    return ""


def _wrong_launch(plan: PlacedPlan, batches: Sequence[Batch]) -> str:
    for index, launch in enumerate(plan.launches):
        ranks = launch.ranks
        if not ranks or list(ranks) != sorted(set(ranks)):
            return f"has a launch {index} whose ranks {ranks} are not ascending"
        if ranks[0] < 0 or ranks[-1] >= plan.world_size:
            return f"has a launch {index} on ranks {ranks} outside 0…{plan.world_size - 1}"
        batch = batches[launch.cascade.steps_ahead]
        for slot in launch.cascade.slots:
            if batch.clips[slot].bucket != launch.cascade.bucket:
                return f"stacks clip {batch.clips[slot].name!r} with clips of another shape"
        if launch.start_s < 0 or launch.duration_s < 0:
            return f"has a launch {index} with a negative time"
        if launch.phase < 0:
            return f"has a launch {index} with a negative phase"
        if launch.mode.ring < 1 or launch.degree % launch.mode.ring:
            return f"has a launch {index} of {launch.degree} ranks in rings of {launch.mode.ring}"
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


def _early_training(plan: PlacedPlan, batch: Batch) -> str:
    """A launch may train a clip only after its encoders, and comes after them in the order."""
    encoded_s: dict[tuple[Encoder, int], float] = {}
    for index, launch in enumerate(plan.launches):
        cascade = launch.cascade
        if cascade.module != "dit":
            if not cascade.steps_ahead:
                encoded_s |= {(cascade.module, slot): launch.end_s for slot in cascade.slots}
            continue
        for slot in cascade.slots:
            clip = batch.clips[slot]
            for module in clip.to_encode:
                ready_s = encoded_s.get((module, slot), inf)
                if launch.start_s < ready_s - _SLACK_S * max(1.0, launch.start_s):
                    return f"starts launch {index} before clip {clip.name!r} is encoded ({module})"
    return ""
