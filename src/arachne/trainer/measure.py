"""Measure this machine before the first step: launches of the dataset's own shapes, all ranks busy.

Every degree is measured with all its blocks at work at once, since ranks that share a memory bus
slow each other down in training too.
"""

import os
from collections import Counter, defaultdict
from functools import partial

import torch
from torch import Tensor

from arachne.core.blocks import blocks
from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade
from arachne.core.cluster import Cluster
from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from arachne.core.rank_log import RankLog, trace_from_logs
from arachne.core.strict_json import from_json, to_json
from arachne.core.trace import Trace
from arachne.cost.calibration import Calibration, fit_device
from arachne.cost.cluster_files import machine_cluster
from arachne.cost.measured_launch import MeasuredLaunch
from arachne.cost.model import CostModel
from arachne.models.interface import FirstFrames
from arachne.runtime.executor import run_launches
from arachne.runtime.machines import Machines
from arachne.runtime.messages import gathered_texts, text_of_first
from arachne.runtime.world import World
from arachne.trainer.agreement import largest
from arachne.trainer.launch_times import measured_launches
from arachne.trainer.session import Session

_SHAPES = 5
_LEAST_REPEATS, _MOST_REPEATS = 2, 8
_BUDGET_S = 5.0
"""Seconds of measuring, shared out evenly among shapes and degrees; the least repeats come first.
*Assumption*: short beside any training, long beside most disturbances."""

_USABLE = 0.9
"""Share of the memory that training may use; the rest is the system's and the allocator's."""


def calibrated(session: Session) -> Calibration:
    """The cluster of this run with measured rates; the same on all ranks, who call it together.

    Repeats go round all shapes and degrees, so that a disturbance of some seconds spoils a few
    repeats of each instead of all of one. Leaves no gradient behind; may be called again.
    """
    world, costs = session.world, session.costs(guessed_cluster(session))
    degrees = sorted({1, *(d for d in session.degrees if world.size % d == 0)})
    plans: list[PlacedPlan] = []
    for degree in degrees:
        cascades = [cascade_of(session, bucket) for bucket in measured_shapes(session)]
        of_degree = [_plan(costs, cascade, degree) for cascade in cascades]
        plans += [plan for plan in of_degree if plan is not None]
        if of_degree[0] is not None:
            _measured(session, of_degree[0])  # the first launch of a degree pays for warming up
    launches: list[MeasuredLaunch] = []
    num_repeats: Counter[int] = Counter()
    spent_s: dict[int, float] = defaultdict(float)
    for _ in range(_MOST_REPEATS):
        for index, plan in enumerate(plans):
            # All ranks have the same measurements, and so decide alike.
            if num_repeats[index] < _LEAST_REPEATS or spent_s[index] < _BUDGET_S / len(plans):
                found = _measured(session, plan)
                launches += found
                num_repeats[index] += 1
                spent_s[index] += max(each.total_s for each in found)
    session.optimizer.clear_gradients()
    text = ""
    if world.rank == 0:
        text = to_json(fit_device(costs, launches))
    shared = text_of_first(text, session.groups.world, world.device)
    session.recorder.finish(step=0, planner="")
    return from_json(shared, Calibration, what="calibration")


def warm_compiled_blocks(session: Session) -> None:
    """Let compiled blocks meet short and long clips, alone and stacked, before they are timed.

    Every rank does it by itself; without `model.compile` there is nothing to do. Compiling takes a
    minute on its first time. Leaves no gradient behind.
    """
    if not session.config.model.compile:
        return
    session.say("compiling the blocks; the first time takes a while")
    buckets = measured_shapes(session)
    for bucket in dict.fromkeys((buckets[0], buckets[-1])):
        for num_clips in (1, 2):
            made_loss(session, bucket, num_clips).backward()
    session.optimizer.clear_gradients()


def guessed_cluster(session: Session) -> Cluster:
    """This run's machines before anything was measured; a rank may use as much memory as the one
    that has least. All ranks call it together.

    Raises:
        ConfigError: The machines have unequal numbers of ranks.
    """
    world = session.world
    check_measurable(world.machines)
    least_bytes = -largest(world, session.groups.world, -int(_memory_bytes(world)))
    return machine_cluster(
        world.size,
        like="h100" if world.device.type == "cuda" else "cpu",
        ranks_per_node=len(world.ranks_here),
        memory_bytes=least_bytes,
    )


def check_measurable(machines: Machines) -> None:
    """Refuse machines that no links inside and between nodes of one size describe.

    Raises:
        ConfigError: They have unequal numbers of ranks.
    """
    if not machines.are_alike:
        raise ConfigError(
            f"cluster.name 'auto' measures nodes of one size, but there are {machines.text}; start "
            "as many on each, or name a cluster file"
        )


def measured_shapes(session: Session) -> list[Bucket]:
    """A few buckets of the dataset from the smallest to the largest, spread over token counts."""
    geometry = family_named(session.model.shape.family).geometry
    found = {row.bucket for row in session.prepared.train.rows if row.bucket is not None}
    ordered = sorted(found, key=lambda bucket: (geometry.num_tokens(bucket), bucket))
    last = len(ordered) - 1
    chosen = {round(last * index / (_SHAPES - 1)) for index in range(_SHAPES)}
    return [ordered[index] for index in sorted(chosen)]


def cascade_of(session: Session, bucket: Bucket) -> Cascade:
    """One clip of a shape, to train."""
    num_tokens = family_named(session.model.shape.family).geometry.num_tokens(bucket)
    return Cascade(module="dit", slots=(0,), bucket=bucket, num_tokens=num_tokens)


def launches_on_blocks(costs: CostModel, cascade: Cascade, degree: int) -> tuple[PlacedLaunch, ...]:
    """A cascade on every block of a degree, as it would be trained; none if it does not fit."""
    ranks_of_block = list(blocks(costs.cluster.num_gpus, degree))
    if not all(costs.fits(cascade, ranks) for ranks in ranks_of_block):
        return ()
    return tuple(
        PlacedLaunch(
            cascade=cascade,
            ranks=ranks,
            start_s=0.0,
            duration_s=costs.launch_s(cascade, ranks),
            mode=costs.mode(cascade, ranks),
        )
        for ranks in ranks_of_block
    )


def _plan(costs: CostModel, cascade: Cascade, degree: int) -> PlacedPlan | None:
    launches = launches_on_blocks(costs, cascade, degree)
    if not launches:
        return None
    return PlacedPlan(
        step=0, planner="measurement", world_size=costs.cluster.num_gpus, launches=launches
    )


def _measured(session: Session, plan: PlacedPlan) -> tuple[MeasuredLaunch, ...]:
    """The launches of a plan, run once; on every rank."""
    bucket = plan.launches[0].cascade.bucket

    def work(launch: PlacedLaunch) -> None:
        (made_loss(session, bucket, num_clips=1) / launch.degree).backward()

    run_launches(
        plan,
        rank=session.world.rank,
        groups=session.groups,
        recorder=session.recorder,
        work=work,
    )
    return measured_launches(session, plan, session.recorder.finish(step=0, planner=plan.planner))


def made_loss(session: Session, bucket: Bucket, num_clips: int) -> Tensor:
    """A loss of clips of ones: what they are does not change what they cost."""
    shape = session.model.shape
    grid = family_named(shape.family).geometry.latent_grid(bucket)
    device, wide = session.world.device, torch.promote_types(session.dtype, torch.float32)
    made = partial(torch.ones, device=device, dtype=wide)
    latents = made(num_clips, shape.latent_channels, *grid)
    text = made(num_clips, *session.null_text.shape)
    first = None
    if shape.sees_first_frame:
        states = made(num_clips, shape.image_tokens, shape.image_size)
        first = FirstFrames(latents=latents, states=states if shape.image_size else None)
    return session.model.predict(latents, 0.5 * made(num_clips), text, first).pow(2).mean()


def shared_trace(session: Session, log: RankLog) -> Trace:
    """The logs of all ranks as one trace, on every rank; for worlds of one machine."""
    texts = gathered_texts(to_json(log), session.groups.world, session.world.device)
    session.recorder.finish(step=log.step, planner="")  # the exchange belongs to no step
    return trace_from_logs([from_json(text, RankLog, what="rank log") for text in texts])


def _memory_bytes(world: World) -> float:
    """Memory that one rank may use: the GPU's, or its share of the machine's."""
    if world.device.type == "cuda":
        return _USABLE * torch.cuda.get_device_properties(world.device).total_memory
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return _USABLE * pages * page_bytes / len(world.ranks_here)
