"""What the launches of a step took, on all their ranks: two numbers for each, exchanged at its end.

Whole logs are exchanged on traced steps only; these numbers are few enough for every step and any
world. They need no common clock: of a launch's ranks, the one that arrived last spent the shortest
time in it, and that is how long the launch took.
"""

from collections import defaultdict
from collections.abc import Sequence

import torch

from arachne.core.placed_plan import PlacedPlan
from arachne.core.rank_log import RankLog
from arachne.cost.measured_launch import MeasuredLaunch
from arachne.runtime import collectives
from arachne.trainer.session import Session


def measured_launches(
    session: Session, plan: PlacedPlan, log: RankLog, is_kept: Sequence[bool] = ()
) -> tuple[MeasuredLaunch, ...]:
    """The training launches of a plan that ran, in its order; all ranks call it together and get
    the same. Encoders' are left out: the cost model is not fitted to them.

    Args:
        session: This rank's.
        plan: What all ranks ran.
        log: What this rank recorded.
        is_kept: By slot, whether its clip was trained; launches that had to do without one are
            left out. Empty if all were.
    """
    of_rank: dict[int, list[int]] = defaultdict(list)
    for index, launch in enumerate(plan.launches):
        for rank in launch.ranks:
            of_rank[rank].append(index)
    most = max(map(len, of_rank.values()), default=0)
    own_s = _own_seconds(log)
    mine = torch.zeros(most, 2, dtype=torch.float64)
    for place, index in enumerate(of_rank[session.world.rank]):
        mine[place] = torch.tensor(own_s.get(index, (0.0, 0.0)))
    gathered = _gathered(session, mine)
    seconds: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for rank in sorted(of_rank):
        for place, index in enumerate(of_rank[rank]):
            seconds[index].append((gathered[rank][place][0], gathered[rank][place][1]))
    found: list[MeasuredLaunch] = []
    for index, launch in enumerate(plan.launches):
        if launch.cascade.module != "dit":
            continue
        compute_s, inside_s = zip(*seconds[index], strict=True)
        is_whole = not is_kept or all(is_kept[slot] for slot in launch.cascade.slots)
        if is_whole and min(compute_s) > 0.0:
            found.append(
                MeasuredLaunch(launch=launch, rank_compute_s=compute_s, total_s=min(inside_s))
            )
    return tuple(found)


def _own_seconds(log: RankLog) -> dict[int, tuple[float, float]]:
    """By launch: seconds that this rank computed, and that it computed or was in collectives."""
    compute_s: dict[int, float] = defaultdict(float)
    inside_s: dict[int, float] = defaultdict(float)
    for event in log.events:
        span = event.span
        if span.launch is not None and span.kind in ("compute", "communicate"):
            inside_s[span.launch] += span.duration_s
            if span.kind == "compute":
                compute_s[span.launch] += span.duration_s
    return {launch: (compute_s[launch], inside_s[launch]) for launch in inside_s}


def _gathered(session: Session, mine: torch.Tensor) -> list[list[list[float]]]:
    """Everybody's numbers, by rank; the exchange belongs to no step."""
    world = session.world
    gathered = torch.empty(world.size * mine.numel(), dtype=mine.dtype, device=world.device)
    if mine.numel():
        collectives.all_gather(gathered, mine.flatten().to(world.device), session.groups.world)
        session.recorder.finish(step=0, planner="")
    return gathered.cpu().view(world.size, *mine.shape).tolist()
