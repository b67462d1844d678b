"""The launch that needs most memory, run once before the first step.

What the cost model took for smaller than it is, or another program leaves no room for, then shows
itself while nothing is lost yet.
"""

from functools import partial

import torch

from arachne.core.batch import Batch
from arachne.core.cluster import Cluster
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from arachne.core.units import bytes_text, count_text
from arachne.cost.model import CostModel
from arachne.runtime.executor import run_launches
from arachne.trainer.agreement import do_together, largest
from arachne.trainer.measure import cascade_of, launches_on_blocks, made_loss
from arachne.trainer.memory_reports import (
    MemoryReport,
    memory_report,
    told_if_stranded,
    write_report,
)
from arachne.trainer.session import Session


def dry_run(session: Session, cluster: Cluster) -> None:
    """Train the costliest launch on made clips, on all blocks of its degree at once.

    That is the one whose modelled memory is largest of all shapes of the dataset on all degrees, a
    clip alone, in the mode it would be planned in. If a rank has no memory for it before the others
    wait, the shape's estimate is raised as after a step, and the launch that is then costliest is
    tried. All ranks call it together. Leaves no gradient behind.

    Raises:
        RankMemoryError: A rank ran out of memory where others wait for it; its report is written.
        DataError: A report cannot be written.
    """
    while True:
        costs = session.costs(cluster)
        plan = _costliest(session, costs)
        if plan is None or not _is_full(session, costs, plan):
            return
        report = memory_report(costs, _batch_of(session, plan), plan, 0, is_dry_run=True)
        session.raised_reserves.take(report)
        do_together(session.world, session.groups.world, partial(_tell, session, report))


def _costliest(session: Session, costs: CostModel) -> PlacedPlan | None:
    """The costliest launch of one clip that is modelled to fit; None if no shape fits anywhere."""
    world_size = session.world.size
    buckets = {row.bucket for row in session.prepared.train.rows if row.bucket is not None}
    cascades = [cascade_of(session, bucket) for bucket in sorted(buckets)]
    needs = sorted(
        (
            (costs.memory(cascade, tuple(range(degree))).total, index, degree)
            for index, cascade in enumerate(cascades)
            for degree in session.degrees
        ),
        reverse=True,
    )
    for _, index, degree in needs:
        launches = launches_on_blocks(costs, cascades[index], degree)
        if launches:
            return PlacedPlan(step=0, planner="dry run", world_size=world_size, launches=launches)
    return None


def _is_full(session: Session, costs: CostModel, plan: PlacedPlan) -> bool:
    """Whether a rank had no memory for its launch; the same on all ranks."""
    world, bucket = session.world, plan.launches[0].cascade.bucket
    given_up: list[int] = []
    if world.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(world.device)

    def work(launch: PlacedLaunch) -> None:
        (made_loss(session, bucket, num_clips=1) / launch.degree).backward()

    batch = _batch_of(session, plan)
    with told_if_stranded(world, session.run_dir, costs, batch, plan, is_dry_run=True):
        in_their_place = torch.empty(
            _bytes_to_come(session, costs, plan.launches[0]), dtype=torch.uint8, device=world.device
        )
        run_launches(
            plan,
            rank=world.rank,
            groups=session.groups,
            recorder=session.recorder,
            work=work,
            give_up=given_up.append,
        )
    del in_their_place
    session.optimizer.clear_gradients()
    is_full = bool(largest(world, session.groups.world, len(given_up)))
    if not is_full and world.device.type == "cuda":
        _say_peak(session, costs, plan.launches[0])
    session.recorder.finish(step=0, planner=plan.planner)  # belongs to no step
    return is_full


def _bytes_to_come(session: Session, costs: CostModel, launch: PlacedLaunch) -> int:
    """What a rank holds in every step but not before the first one: the optimizer's state, which is
    made at its first update, and encoders that work within steps."""
    use = costs.memory_in(launch.mode, launch.cascade, launch.degree)
    return max(0, int(use.optimizer + use.encoders) - session.optimizer.owned_bytes())


def _batch_of(session: Session, plan: PlacedPlan) -> Batch:
    """A clip of the launches' shape, for messages."""
    rows, bucket = session.prepared.train.rows, plan.launches[0].cascade.bucket
    item = next(item for item, row in enumerate(rows) if row.bucket == bucket)
    return session.prepared.train.batch_of((item,), plan.step)


def _say_peak(session: Session, costs: CostModel, launch: PlacedLaunch) -> None:
    """What the launch held at most, beside what is planned with."""
    world = session.world
    most = largest(world, session.groups.world, torch.cuda.max_memory_allocated(world.device))
    planned = costs.memory_in(launch.mode, launch.cascade, launch.degree).total
    ranks = count_text(launch.degree, "rank")
    session.say(
        f"dry run of the costliest launch, {launch.cascade.bucket} on {ranks}: "
        f"{bytes_text(most)} at most, planned with {bytes_text(planned)}"
    )


def _tell(session: Session, report: MemoryReport) -> None:
    if session.world.rank == 0:
        session.say(f"dry run: {report.text}; {write_report(report, session.run_dir)}")
