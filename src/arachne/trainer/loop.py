"""The training loop of one rank, from the first or a later step to the last.

While step k runs, the clips of step k+1 are read and the plan of step k+2 is made: a plan is known
one step ahead, so that each rank can load what its own launches need and nothing else.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median

from arachne.core.batch import Batch
from arachne.core.cluster import Cluster
from arachne.core.placed_plan import PlacedPlan
from arachne.core.rank_log import RankLog
from arachne.core.trace import Trace
from arachne.cost.measured_launch import MeasuredLaunch
from arachne.data.loader import ClipLoader
from arachne.runtime.plan_source import PlanSource
from arachne.runtime.watched import launch_texts
from arachne.trainer import state
from arachne.trainer.agreement import do_together
from arachne.trainer.bad_steps import MAX_BAD_STEPS, too_many_bad_steps, why_skipped
from arachne.trainer.cluster_choice import chosen_cluster, fallback_plan
from arachne.trainer.dataset import ClipArrays
from arachne.trainer.launch_times import measured_launches
from arachne.trainer.measure import shared_trace
from arachne.trainer.planning import PlanRequest, plan_batch
from arachne.trainer.recalibration import Recalibrator
from arachne.trainer.schedule import learning_rate
from arachne.trainer.session import Session
from arachne.trainer.state import Progressed
from arachne.trainer.step import StepOutcome, run_step, slots_of_rank
from arachne.trainer.stop_request import StopRequest
from arachne.trainer.validation import validation_loss

_MAX_SHOWN_RANKS = 16
"""Larger worlds write their logs and exchange none; `arachne report` joins them afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What is known of a step once it is over.

    Attributes:
        trace: Spans of all ranks, for steps that are traced.
        launches: What each launch took; those that had to do without a clip are left out.
        lr: Learning rate.
        modelled_step_s: Seconds that the cost model promised, reduction and optimizer counted.
    """

    step: int
    batch: Batch
    plan: PlacedPlan
    outcome: StepOutcome
    trace: Trace | None
    launches: tuple[MeasuredLaunch, ...]
    lr: float
    modelled_step_s: float

    @property
    def launch_error(self) -> float | None:
        """Median over the launches of |promised / measured − 1|; None if there was none."""
        return median(each.plan_error for each in self.launches) if self.launches else None


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
        cluster: What plans were made for at the end.
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
    cluster = chosen_cluster(session, progressed.cluster)
    recalibrator = Recalibrator(session, cluster)
    if progressed.step == 0:
        _validate(session, listener, 0)
    run = _Run(
        session=session,
        listener=listener,
        recalibrator=recalibrator,
        stop=stop,
        max_bad_steps=max_bad_steps,
    )
    with (
        PlanSource[PlanRequest](
            session.world,
            session.groups.world,
            request_of=lambda step: session.plan_request(step, recalibrator.cluster),
            make_plan=plan_batch,
            make_fallback=fallback_plan,
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
    recalibrator: Recalibrator
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
            self.recalibrator.after_step(step, report.launches)
            do_together(
                self.session.world,
                self.session.groups.world,
                partial(self._tell, report),
            )
            self._say_what_was_left_out(report)
            bad_steps = 0 if report.outcome.is_updated else bad_steps + 1
            if bad_steps >= self.max_bad_steps:
                raise too_many_bad_steps(self.session, bad_steps, step, self._why_skipped(report))
            done = step + 1
            wants_stop = report.outcome.wants_stop
            every = config.checkpoint.every
            if wants_stop or done == last or (every and done % every == 0):
                self.session.recorder.progress.change("checkpoint")
                state.save(self.session, replace(progressed, cluster=self.recalibrator.cluster))
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
            cluster=self.recalibrator.shared_cluster(),
            left_out=tuple(sorted(self.left_out)),
        )

    def _plan_of(
        self, step: int, plans: PlanSource[PlanRequest], loader: ClipLoader[ClipArrays]
    ) -> PlacedPlan:
        """The plan of a step; starts reading its clips, and planning the step after it."""
        self.session.recorder.progress.change("plan")
        plan = plans.obtain(step)
        self.session.recorder.finish(step=step, planner="plan")  # sending it belongs to no step
        if step + 1 < self.session.config.run.steps:
            plans.request(step + 1)
        items = self.session.step_batch(step).items
        loader.prefetch(items[slot] for slot in slots_of_rank(plan, self.session.world.rank))
        return plan

    def _step(self, step: int, plan: PlacedPlan, loader: ClipLoader[ClipArrays]) -> StepReport:
        session = self.session
        chosen = self.session.step_batch(step)
        texts = launch_texts(chosen.batch, plan, session.world.rank)
        session.recorder.progress.begin_step(step, texts)
        lr = learning_rate(session.config.optimizer, step)
        outcome = run_step(
            session, chosen, plan, read=loader.take, lr=lr, wants_stop=lambda: self.stop.is_set
        )
        launches = measured_launches(session, plan, outcome.log, outcome.vote.is_kept)
        trace = None
        if self._is_traced(step) and session.world.size <= _MAX_SHOWN_RANKS:
            trace = shared_trace(session, outcome.log)
        return StepReport(
            step=step,
            batch=chosen.batch,
            plan=plan,
            outcome=outcome,
            trace=trace,
            launches=launches,
            lr=lr,
            modelled_step_s=plan.makespan_s
            + session.costs(self.recalibrator.cluster).step_overhead_s(),
        )

    def _is_traced(self, step: int) -> bool:
        every = self.session.config.logging.trace_every
        return bool(every) and step % every == 0

    def _tell(self, report: StepReport) -> None:
        if self._is_traced(report.step):
            self.listener.on_rank_log(report.outcome.log)
        self.listener.on_step(report)

    def _say_what_was_left_out(self, report: StepReport) -> None:
        for clip, kept in zip(report.batch.clips, report.outcome.vote.is_kept, strict=True):
            if not kept:
                self.left_out.add(clip.name)
                self.session.say(f"step {report.step}: clip {clip.name!r} cannot be read; left out")
        if not report.outcome.is_updated:
            self.session.say(f"step {report.step}: {self._why_skipped(report)}; step skipped")

    def _why_skipped(self, report: StepReport) -> str:
        return why_skipped(self.session, report.batch, report.plan, report.outcome)


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


def _validate(session: Session, listener: Listener, step: int) -> None:
    if session.config.validation.every:
        listener.on_validation(step, validation_loss(session))
