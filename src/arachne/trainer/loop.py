"""The training loop of one rank, from the first or a later step to the last.

While step k runs, the clips of step k+1 are read and the plan of step k+2 is made: a plan is known
one step ahead, so that each rank can load what its own launches need and nothing else.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import isfinite

import torch.distributed as dist

from arachne.core.batch import Batch
from arachne.core.cluster import Cluster
from arachne.core.errors import DataError
from arachne.core.placed_plan import PlacedPlan
from arachne.core.rank_log import RankLog
from arachne.core.trace import Trace
from arachne.cost.cluster_files import load_cluster
from arachne.data.loader import ClipLoader
from arachne.runtime.plan_source import PlanSource
from arachne.trainer import state
from arachne.trainer.dataset import ClipArrays, StepBatch
from arachne.trainer.measure import calibrated, shared_trace
from arachne.trainer.objective import sigma_of
from arachne.trainer.planning import PlanRequest, plan_batch
from arachne.trainer.randomness import draw_clip
from arachne.trainer.schedule import learning_rate
from arachne.trainer.session import Session
from arachne.trainer.state import Progressed
from arachne.trainer.step import StepOutcome, run_step, slots_of_rank
from arachne.trainer.stop_request import StopRequest
from arachne.trainer.validation import validation_loss

FALLBACK_PLANNER = "static_dp_longest_first"
MAX_BAD_STEPS = 10
"""So many steps in a row without an update end the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What is known of a step once it is over.

    Attributes:
        trace: Spans of all ranks, for steps that are traced.
        lr: Learning rate.
        modelled_step_s: Seconds that the cost model promised, reduction and optimizer counted.
    """

    step: int
    batch: Batch
    plan: PlacedPlan
    outcome: StepOutcome
    trace: Trace | None
    lr: float
    modelled_step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Who is told what, on every rank; the command line shows it and writes the run's files."""

    on_step: Callable[[StepReport], None]
    on_validation: Callable[[int, float], None]
    on_rank_log: Callable[[RankLog], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How a run ended.

    Attributes:
        step: Optimizer steps done.
        was_stopped: True if a signal ended it before the last step.
        losses: Loss of every updating step so far.
        cluster: What plans were made for.
        left_out: Names of clips that some step had to do without, sorted.
    """

    step: int
    was_stopped: bool
    losses: tuple[float, ...]
    cluster: Cluster
    left_out: tuple[str, ...]


def train(
    session: Session, listener: Listener, *, resume: bool, max_bad_steps: int = MAX_BAD_STEPS
) -> Finished:
    """Train to `run.steps`; all ranks call it together.

    Raises:
        CheckpointError: There is nothing to resume from, or a checkpoint cannot be written.
        DataError: `max_bad_steps` in a row had no finite gradient, or no clip to train on.
        InfeasibleError: A clip fits nowhere on the cluster; told before the first step.
    """
    stop = StopRequest()
    stop.listen()
    progressed = state.load_newest(session) if resume else _fresh()
    cluster = _cluster(session, progressed)
    progressed = replace(progressed, cluster=cluster)
    _check_every_shape_fits(session, cluster)
    if progressed.step == 0:
        _validate(session, listener, 0)
    run = _Run(
        session=session,
        listener=listener,
        cluster=cluster,
        stop=stop,
        max_bad_steps=max_bad_steps,
    )
    with (
        PlanSource[PlanRequest](
            session.world,
            request_of=lambda step: session.plan_request(step, cluster),
            make_plan=plan_batch,
            make_fallback=_fallback_plan,
            timeout_s=session.config.planner.timeout_s,
            say=session.say,
        ) as plans,
        ClipLoader[ClipArrays](
            session.prepared.train.read, max_items=2 * session.config.batch.clips
        ) as loader,
    ):
        return run.steps(progressed, plans, loader)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    session: Session
    listener: Listener
    cluster: Cluster
    stop: StopRequest
    max_bad_steps: int
    left_out: set[str] = field(default_factory=set)

    def steps(
        self,
        progressed: Progressed,
        plans: PlanSource[PlanRequest],
        loader: ClipLoader[ClipArrays],
    ) -> Finished:
        config = self.session.config
        last = config.run.steps
        if progressed.step >= last:
            return self._finished(progressed, was_stopped=False)
        plan = self._plan_of(progressed.step, plans, loader)
        bad_steps = 0
        for step in range(progressed.step, last):
            next_plan = self._plan_of(step + 1, plans, loader) if step + 1 < last else None
            report = self._step(step, plan, loader)
            progressed = _after(progressed, report.outcome)
            self.listener.on_step(report)
            bad_steps = 0 if report.outcome.is_updated else bad_steps + 1
            self._say_what_was_left_out(report)
            if bad_steps >= self.max_bad_steps:
                raise _too_many_bad_steps(self.session, bad_steps, report)
            done = step + 1
            wants_stop = report.outcome.vote.wants_stop
            every = config.checkpoint.every
            if wants_stop or done == last or (every and done % every == 0):
                state.save(self.session, progressed)
            if wants_stop and done < last:
                return self._finished(progressed, was_stopped=True)
            if (config.validation.every and done % config.validation.every == 0) or done == last:
                _validate(self.session, self.listener, done)
            if next_plan is not None:
                plan = next_plan
        return self._finished(progressed, was_stopped=False)

    def _finished(self, progressed: Progressed, *, was_stopped: bool) -> Finished:
        return Finished(
            step=progressed.step,
            was_stopped=was_stopped,
            losses=progressed.losses,
            cluster=self.cluster,
            left_out=tuple(sorted(self.left_out)),
        )

    def _plan_of(
        self, step: int, plans: PlanSource[PlanRequest], loader: ClipLoader[ClipArrays]
    ) -> PlacedPlan:
        """The plan of a step; starts reading its clips, and planning the step after it."""
        plan = plans.obtain(step)
        if step + 1 < self.session.config.run.steps:
            plans.request(step + 1)
        items = self._chosen(step).items
        loader.prefetch(items[slot] for slot in slots_of_rank(plan, self.session.world.rank))
        return plan

    def _chosen(self, step: int) -> StepBatch:
        config = self.session.config
        return self.session.prepared.train.step_batch(
            seed=config.run.seed, step=step, num_clips=config.batch.clips
        )

    def _step(self, step: int, plan: PlacedPlan, loader: ClipLoader[ClipArrays]) -> StepReport:
        session = self.session
        chosen = self._chosen(step)
        lr = learning_rate(session.config.optimizer, step)
        outcome = run_step(
            session, chosen, plan, read=loader.take, lr=lr, wants_stop=self.stop.is_set
        )
        trace = None
        every = session.config.logging.trace_every
        if every and step % every == 0:
            self.listener.on_rank_log(outcome.log)
            trace = shared_trace(session.world, outcome.log)
        return StepReport(
            step=step,
            batch=chosen.batch,
            plan=plan,
            outcome=outcome,
            trace=trace,
            lr=lr,
            modelled_step_s=plan.makespan_s + session.costs(self.cluster).step_overhead_s(),
        )

    def _say_what_was_left_out(self, report: StepReport) -> None:
        outcome = report.outcome
        for slot, kept in enumerate(outcome.vote.is_kept):
            if not kept:
                name = report.batch.clips[slot].name
                self.left_out.add(name)
                self.session.say(f"step {report.step}: clip {name!r} cannot be read; left out")
        if not outcome.is_updated:
            reason = (
                f"no finite gradient ({_bad_clips(self.session, report)})"
                if any(outcome.vote.is_kept)
                else "none of its clips can be read"
            )
            self.session.say(f"step {report.step}: {reason}; step skipped")


def _too_many_bad_steps(session: Session, count: int, report: StepReport) -> DataError:
    if any(report.outcome.vote.is_kept):
        return DataError(
            f"{count} steps in a row had no finite gradient, the last with "
            f"{_bad_clips(session, report)}; lower optimizer.lr or remove the clips"
        )
    return DataError(
        f"{count} steps in a row could not be trained; in the last, step {report.step}, none of "
        f"{len(report.batch.clips)} clips can be read from the cache; delete "
        f"{session.config.data.cache!r} to encode the clips again"
    )


def _bad_clips(session: Session, report: StepReport) -> str:
    bad = [
        f"{clip.name!r} ({clip.bucket}, noise level {_sigma_of(session, report.step, slot):.3f}, "
        f"ranks {_ranks_of(report.plan, slot)})"
        for slot, clip in enumerate(report.batch.clips)
        if not isfinite(report.outcome.clip_losses[slot])
    ]
    return "clips " + ", ".join(bad) if bad else "all losses finite"


def _sigma_of(session: Session, step: int, slot: int) -> float:
    draw = draw_clip(seed=session.config.run.seed, step=step, slot=slot, shape=())
    return sigma_of(draw, session.config.objective)


def _ranks_of(plan: PlacedPlan, slot: int) -> str:
    ranks = next(launch.ranks for launch in plan.launches if slot in launch.cascade.slots)
    return ", ".join(map(str, ranks))


def _fresh() -> Progressed:
    return Progressed(step=0, num_updates=0, losses=(), cluster=None)


def _after(progressed: Progressed, outcome: StepOutcome) -> Progressed:
    if not outcome.is_updated:
        return replace(progressed, step=progressed.step + 1)
    return replace(
        progressed,
        step=progressed.step + 1,
        num_updates=progressed.num_updates + 1,
        losses=(*progressed.losses, outcome.loss),
    )


def _cluster(session: Session, progressed: Progressed) -> Cluster:
    """What plans are made for: named by the user, taken from the checkpoint, or measured now."""
    name = session.config.cluster.name
    world_size = session.world.size
    if name != "auto":
        return load_cluster(f"{name}x{world_size}")
    if progressed.cluster is not None and progressed.cluster.num_gpus == world_size:
        return progressed.cluster
    calibration = calibrated(session)
    session.say(
        f"calibrated on {world_size} ranks; median error of the cost model "
        f"{calibration.median_error:.1%}"
    )
    return calibration.cluster


def _check_every_shape_fits(session: Session, cluster: Cluster) -> None:
    """Plan one clip of every shape, so that one that fits nowhere is named before step 1."""
    rows = session.prepared.train.rows
    first_of_shape = {row.bucket: item for item, row in reversed(tuple(enumerate(rows)))}
    items = tuple(sorted(first_of_shape.values()))
    request = session.plan_request(0, cluster)
    _fallback_plan(replace(request, batch=session.prepared.train.batch_of(items, 0)))


def _validate(session: Session, listener: Listener, step: int) -> None:
    if session.config.validation.every:
        listener.on_validation(step, validation_loss(session))
        dist.barrier()


def _fallback_plan(request: PlanRequest) -> PlacedPlan:
    return plan_batch(replace(request, planner=FALLBACK_PLANNER))
