"""Measure this machine before the first step: launches of the dataset's own shapes, all ranks busy.

Every degree is measured with all its blocks at work at once, since ranks that share a memory bus
slow each other down in training too.
"""

import os
from statistics import median

import torch

from arachne.core.blocks import blocks
from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade
from arachne.core.cluster import Cluster
from arachne.core.families import family_named
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from arachne.core.rank_log import RankLog, trace_from_logs
from arachne.core.strict_json import from_json, to_json
from arachne.core.trace import Trace
from arachne.cost.calibration import Calibration, Measurement, fit_device
from arachne.cost.cluster_files import machine_cluster
from arachne.runtime.executor import run_launches
from arachne.runtime.messages import gathered_texts, text_of_first
from arachne.runtime.world import World
from arachne.trainer.session import Session

_SHAPES = 5
_REPEATS = 3
_USABLE = 0.9
"""Share of the memory that training may use; the rest is the system's and the allocator's."""


def calibrated(session: Session) -> Calibration:
    """The cluster of this run with measured rates; the same on all ranks, who call it together.

    Leaves no gradient behind; may be called again.
    """
    tokens = measured_shapes(session)
    degrees = sorted({1, *(d for d in session.degrees if session.world.size % d == 0)})
    measurements: list[Measurement] = []
    for degree in degrees:
        # The first launch of a degree pays for warming up.
        _measure(session, tokens[0], degree)
        for bucket in tokens:
            measurements += _measure(session, bucket, degree)
    session.optimizer.clear_gradients()
    world = session.world
    text = ""
    if world.rank == 0:
        fitted = fit_device(
            session.model.shape,
            guessed_cluster(session),
            measurements,
            element_bytes=torch.finfo(session.dtype).bits // 8,
        )
        text = to_json(fitted)
    shared = text_of_first(text, session.groups.world, world.device)
    session.recorder.finish(step=0, planner="")
    return from_json(shared, Calibration, what="calibration")


def guessed_cluster(session: Session) -> Cluster:
    """This run's machines before anything was measured; their memory is known."""
    world = session.world
    return machine_cluster(
        world.size,
        like="h100" if world.device.type == "cuda" else "cpu",
        ranks_per_node=world.ranks_per_node,
        memory_bytes=_memory_bytes(world),
    )


def measured_shapes(session: Session) -> list[Bucket]:
    """A few buckets of the dataset from the smallest to the largest, spread over token counts."""
    geometry = family_named(session.model.shape.family).geometry
    found = {row.bucket for row in session.prepared.train.rows if row.bucket is not None}
    ordered = sorted(found, key=lambda bucket: (geometry.num_tokens(bucket), bucket))
    last = len(ordered) - 1
    chosen = {round(last * index / (_SHAPES - 1)) for index in range(_SHAPES)}
    return [ordered[index] for index in sorted(chosen)]


def _measure(session: Session, bucket: Bucket, degree: int) -> list[Measurement]:
    """Median over repeats of one shape on all blocks of one degree; one value, on every rank."""
    world = session.world
    num_tokens = family_named(session.model.shape.family).geometry.num_tokens(bucket)
    cascade = Cascade(module="dit", slots=(0,), bucket=bucket, num_tokens=num_tokens)
    plan = PlacedPlan(
        step=0,
        planner="measurement",
        world_size=world.size,
        launches=tuple(
            PlacedLaunch(cascade=cascade, ranks=ranks, start_s=0.0, duration_s=0.0)
            for ranks in blocks(world.size, degree)
        ),
    )
    results = [_measured_once(session, plan) for _ in range(_REPEATS)]
    return [
        Measurement(
            num_tokens=num_tokens,
            num_clips=1,
            degree=degree,
            compute_s=median(compute_s for compute_s, _ in results),
            communicate_s=max(0.0, median(rest_s for _, rest_s in results)) if degree > 1 else 0.0,
        )
    ]


def _measured_once(session: Session, plan: PlacedPlan) -> tuple[float, float]:
    """Seconds computing on the slowest rank, and the rest of the longest launch."""
    bucket = plan.launches[0].cascade.bucket
    shape = session.model.shape
    grid = family_named(shape.family).geometry.latent_grid(bucket)
    device, wide = session.world.device, torch.promote_types(session.dtype, torch.float32)
    latents = torch.ones(1, shape.latent_channels, *grid, device=device, dtype=wide)
    text = torch.ones(1, *session.null_text.shape, device=device, dtype=wide)
    sigma = torch.full((1,), 0.5, device=device, dtype=wide)

    def work(launch: PlacedLaunch) -> None:
        loss = session.model.predict(latents, sigma, text).pow(2).mean()
        (loss / launch.degree).backward()

    run_launches(
        plan,
        rank=session.world.rank,
        groups=session.groups,
        recorder=session.recorder,
        work=work,
    )
    log = session.recorder.finish(step=0, planner=plan.planner)
    trace = shared_trace(session, log)
    compute_s = max(
        sum(s.duration_s for s in trace.spans if s.rank == rank and s.kind == "compute")
        for rank in range(session.world.size)
    )
    return compute_s, max(_launch_s(trace, i) for i in range(len(plan.launches))) - compute_s


def _launch_s(trace: Trace, launch: int) -> float:
    """From the arrival of a launch's last member to its end.

    Members wait a little for each other in every collective; that is part of what a degree costs.
    """
    first_s: dict[int, float] = {}
    end_s = 0.0
    for span in trace.spans:
        if span.launch == launch:
            first_s.setdefault(span.rank, span.start_s)
            end_s = max(end_s, span.end_s)
    return end_s - max(first_s.values())


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
    return _USABLE * pages * page_bytes / world.ranks_per_node
